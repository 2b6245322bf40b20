// Selections of whole caches whose layers and heads have budgets of their own, or share one, or rank in two
// stages: against a slow reference in double that is written from the field's specification. After a prompt,
// and after rows. KEYHOLE_SELECTIONS=N makes N selections a policy.
#include "engine/backend/common/choice.h"
#include "engine/backend/common/kernels.h"
#include "engine/backend/cpu/select.h"
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "engine/policy/lane_spec.h"
#include "engine/session/look_ahead.h"
#include "engine/session/run_context.h"
#include "engine/trace/record.h"
#include "tests/reference/reference_policy.h"
#include "tests/reference/shared_budgets.h"
#include "tests/reference/temp_folder.h"
#include "tests/reference/tiny_shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <set>

namespace reference::test_shared_selection {
namespace {

using keyhole::to_index;

constexpr double kEps = 2e-5;  // of a rank, in float

int n_selections() {
    const char* wanted = std::getenv("KEYHOLE_SELECTIONS");
    return wanted != nullptr ? std::atoi(wanted) : 400;
}

/// Small models, by layers and KV heads: for what W_o does and for second passes.
std::shared_ptr<const keyhole::Model> model_of(int n_layers, int n_kv_heads) {
    static std::map<std::pair<int, int>, std::shared_ptr<const keyhole::Model>> known;
    auto& model = known[{n_layers, n_kv_heads}];
    if (model == nullptr) {
        keyhole::ModelShape shape = tiny_shape(258);
        shape.config.n_layers = n_layers;
        shape.config.n_kv_heads = n_kv_heads;
        shape.config.head_dim = 8;
        shape.config.d_model = 32;
        shape.config.d_ff = 32;
        shape.config.rotary.dims = 8;
        shape.config.rotary.inverse_frequency.resize(4);
        model = keyhole::make_seeded_model(shape, keyhole::DType::f32);
    }
    return model;
}

constexpr int kDim = 8;

/// The numbers of a lane's spec, chosen before it is written: the reference counts with these.
struct Numbers {
    int budget = 1, recent = 0, sinks = 0, window = 1, kernel = 0, every = 1, buffer = 0, floor = 20;
    Quotient beta{0, 1};  ///< 0: layers are alike
    bool as_code = false, in_decode = true, in_prompt = true;
    enum class Shares { none, layer, model } shares = Shares::none;
    std::vector<int> guarded;  ///< positions that a formula protects: none, below the first or from it on
    int protect_from = 0, protect_to = -1;
};

/// What a KV head stores.
struct Stored {
    std::vector<std::int32_t> positions;  ///< ascending
    std::vector<std::vector<float>> values;
    std::vector<std::vector<std::vector<float>>> rows;  ///< [reader][kept row, the oldest first][token]
    std::set<int> pinned;
};

/// A model's attention on the prompt while it reads that again: rows of probabilities in parts of the prompt.
class SecondPass final : public keyhole::Backend {
  public:
    SecondPass(std::shared_ptr<const keyhole::Model> model, std::mt19937& random)
        : model_(std::move(model)), random_(random) {}
    std::string name() const override { return "rows at random"; }
    keyhole::KvType kv_type(keyhole::KvType) const override { return keyhole::KvType::f32; }
    std::unique_ptr<keyhole::KvCache> make_cache(const keyhole::ResolvedPolicy& policy,
                                                 std::shared_ptr<const keyhole::Model>) override {
        auto cache = std::make_unique<keyhole::cpu::CpuKvCache>(model_);
        cache->set_policy(policy);
        return cache;
    }
    void prefill(std::span<const int> tokens, std::span<const keyhole::LanePrefill>,
                 keyhole::PrefillSink* sink, const std::function<bool(double)>&) override {
        const int n = static_cast<int>(tokens.size());
        Pass& pass = passes.emplace_back();
        for (int layer = 0; layer < model_->config().n_layers; ++layer)
            for (int head = 0; head < model_->config().n_heads; ++head) {
                // Two tiles, the second of which begins among the rows of the prompt or behind them.
                Vector& all = pass.attention.emplace_back();
                const int middle = 1 + static_cast<int>(random_() % to_index(n - 1));
                for (const auto& [first, last] : {std::pair{0, middle}, {middle, n}}) {
                    std::vector<float> rows(to_index((last - first) * n), NAN);
                    for (int row = first; row < last; ++row) {
                        float* of_row = rows.data() + to_index((row - first) * n);
                        float sum = 0;
                        for (int p = 0; p <= row; ++p) {
                            const auto u = static_cast<float>(random_() % 1000 + 1) / 1000;
                            sum += of_row[p] = u * u * u;
                        }
                        for (int p = 0; p <= row; ++p) of_row[p] /= sum;
                    }
                    all.insert(all.end(), rows.begin(), rows.end());
                    sink->attention({-1, layer, head, first, last - first, n, rows.data()});
                }
            }
        pass.n = n;
    }
    void step(std::span<const keyhole::LaneStep>) override {}
    std::vector<keyhole::Eviction> apply_policy(keyhole::KvCache&, const keyhole::ResolvedPolicy&,
                                                int) override {
        return {};
    }
    std::int64_t weight_bytes() const override { return 0; }

    struct Pass {
        int n = 0;                      ///< tokens: the prompt and what is read behind it
        std::vector<Vector> attention;  ///< [layer * query head][row, n]
    };
    std::vector<Pass> passes;  ///< a part of the prompt each

  private:
    std::shared_ptr<const keyhole::Model> model_;
    std::mt19937& random_;
};

/// Returns KVzip's value of a token (section 16): of the rows that repeat its part of the prompt and of the
/// KV head's query heads, the most of a softmax over the first four tokens, the part and the rows' own.
double repeated(const SecondPass& pass, const keyhole::KvHead& head, int n_heads, int n_prompt, int part,
                int p) {
    const SecondPass::Pass& own = pass.passes[to_index(p / part)];
    const int first = p / part * part, last = std::min(first + part, n_prompt);
    double most = 0;
    for (const keyhole::HeadRef& reader : head.readers)
        for (int row = n_prompt; row < own.n; ++row) {
            const double* of_row =
                own.attention[to_index(reader.layer * n_heads + reader.head)].data() + to_index(row * own.n);
            double seen = 0;
            for (int i = 0; i <= row; ++i)
                if (i < 4 || (i >= first && i < last) || i >= n_prompt) seen += of_row[i];
            most = std::max(most, of_row[p] / seen);
        }
    return most;
}

/// A random cache of a random layout with a policy, after a prompt or after a row.
struct Round {
    std::string preset, spec;
    Numbers is;
    int n_prompt = 1, row = 0, n_kept_rows = 0;
    bool after_prompt = false;
    double eps = kEps;                            ///< 0: sums have no rounding, and ties are ties
    std::shared_ptr<const keyhole::Model> model;  ///< null: none is needed
    keyhole::KvLayout layout;
    keyhole::ResolvedPolicy policy;
    std::vector<keyhole::Unit> units;
    std::vector<Stored> heads;
    std::shared_ptr<const keyhole::RepeatTable> repeats;
    std::vector<Vector> again;    ///< KVzip's values, [KV head][position of the prompt]
    std::vector<bool> keeps_all;  ///< of KV heads, by DuoAttention's file

    Round(std::mt19937& random, std::string of, const TempFolder& folder)
        : preset(std::move(of)), layout(keyhole::KvLayout::grouped(1, 1, 1)), random_(random) {
        is.as_code = preset.find("released") != std::string::npos;
        after_prompt = is.as_code || below(2) == 0;
        n_prompt = 2 + below(50);
        row = after_prompt ? n_prompt - 1 : n_prompt + below(20);
        make_layout();
        write_spec(folder);
        policy =
            keyhole::resolve(keyhole::parse_lane_spec(spec).policy, n_prompt, 20, keyhole::head_grid(layout));
        units = keyhole::units_of(layout, policy.scope);
        n_kept_rows = 1 + below(std::min(is.window, row + 1));
        if (after_prompt) n_kept_rows = std::min(is.window, n_prompt);
        fill();
        if (starts_with("kvzip")) read_again();
        if (starts_with("kvzip")) eps = 1e-6;  // one division
    }

    bool starts_with(const char* name) const { return preset.starts_with(name); }
    bool reads_rows() const { return !starts_with("duo") && !starts_with("kvzip"); }
    std::set<int> pinned_in(const keyhole::Unit& unit) const {
        std::set<int> all;
        for (int g = unit.first; g < unit.last; ++g)
            all.insert(heads[to_index(g)].pinned.begin(), heads[to_index(g)].pinned.end());
        return all;
    }

  private:
    std::mt19937& random_;

    int below(int n) { return static_cast<int>(random_() % to_index(n)); }
    template <class T>
    T one_of(const std::vector<T>& of) {
        return of[to_index(below(static_cast<int>(of.size())))];
    }

    void make_layout() {
        const int n_kv_heads = 1 << below(3);
        if (starts_with("critical") || starts_with("kvzip")) {
            model = model_of(1 + below(starts_with("kvzip") ? 3 : 2), n_kv_heads);
            layout = model->layout();
            return;
        }
        const int n_layers = 1 + below(starts_with("pyramidkv") ? 6 : 4);
        layout = keyhole::KvLayout::shared(n_layers, 4, starts_with("duo") ? n_layers : 1 + below(n_layers),
                                           n_kv_heads);
    }

    void write_spec(const TempFolder& folder) {
        is.budget = 1 + below(std::min(row + 1, 40));
        spec = preset + (preset.find(':') == std::string::npos ? ":" : ",");
        spec += fmt::format("budget={}", is.budget);
        is.sinks = one_of<int>({0, 0, 1, 3});
        spec += fmt::format(",sinks={}", is.sinks);
        is.sinks = std::min(is.sinks, is.budget);
        if (starts_with("duo")) {
            is.recent = is.budget - is.sinks;
            spec += ",heads=" + head_file(folder);
        } else {
            const int percent = one_of<int>({0, 0, 25, 40}), tokens = below(5);
            spec += percent > 0 ? fmt::format(",recent={}%", percent) : fmt::format(",recent={}", tokens);
            is.recent = std::min(percent > 0 ? is.budget * percent / 100 : tokens, is.budget - is.sinks);
            spec += fmt::format(",pool={}", one_of<std::string>({"mean", "sum", "max"}));
        }
        if (reads_rows()) {
            is.window = 1 + below(9);
            is.kernel = one_of<int>({0, 3, 5, -3, -7});
            spec += fmt::format(",window={},kernel={}{}", is.window,
                                is.kernel == 0  ? "none"
                                : is.kernel > 0 ? "avg:"
                                                : "max:",
                                is.kernel == 0 ? "" : std::to_string(std::abs(is.kernel)));
        }
        if (!is.as_code) is.buffer = one_of<int>({0, 0, 0, 2, 5});
        if (is.buffer > 0) spec += fmt::format(",buffer={}", is.buffer);
        if (starts_with("pyramidkv")) is.beta = {20, 1};
        if (starts_with("pyramidkv") || (starts_with("adakv") && !is.as_code && below(3) == 0))
            write_pyramid();
        write_shares();
        if (!is.as_code) write_when();
        // A lane alone that goes on evicting refuses a prompt that is protected beyond its budget.
        const bool refuses = after_prompt && is.in_decode && is.shares == Numbers::Shares::none;
        if (!is.as_code && !starts_with("duo") && !refuses && below(4) == 0) {
            is.protect_from = below(4);
            is.protect_to = is.protect_from + below(4);
            spec += fmt::format(",protect={}..{}", is.protect_from, is.protect_to);
        }
    }

    void write_pyramid() {
        const auto& [text, beta] = one_of<std::pair<const char*, Quotient>>(
            {{"20", {20, 1}}, {"1", {1, 1}}, {"2", {2, 1}}, {"3", {3, 1}}, {"2.5", {5, 2}}, {"7", {7, 1}}});
        is.beta = beta;
        spec += fmt::format(",pyramid={}", text);
    }

    void write_shares() {
        if (starts_with("adakv")) is.shares = Numbers::Shares::layer;
        if (starts_with("kvzip")) is.shares = Numbers::Shares::model;
        if (is.shares == Numbers::Shares::none) {
            if (!is.as_code && !starts_with("duo"))
                spec += fmt::format(",scope={}", one_of<std::string>({"head", "head", "layer"}));
            return;
        }
        const int kind = below(4);
        if (kind == 0 && !is.as_code) {
            is.shares = is.shares == Numbers::Shares::layer ? Numbers::Shares::model : Numbers::Shares::layer;
            spec += is.shares == Numbers::Shares::layer ? ",alloc=adaptive" : ",alloc=global";
        }
        if (is.shares == Numbers::Shares::model) {
            is.floor = 0;
        } else if (kind != 1) {
            is.floor = is.as_code ? one_of<int>({20, 0, 50}) : one_of<int>({20, 0, 35, 50, 60, 100});
            spec += fmt::format(",floor={}%", is.floor);
        }
    }

    /// The preset's own are once after the prompt, but for DuoAttention's.
    void write_when() {
        const std::string evict = after_prompt ? one_of<std::string>({"", "always", "prompt"})
                                               : one_of<std::string>({"always", "always", "decode"});
        if (!evict.empty()) spec += ",evict=" + evict;
        is.in_prompt = evict != "decode";
        is.in_decode = evict == "always" || evict == "decode";
        is.every = one_of<int>({1, 1, 3});
        if (is.every > 1) spec += fmt::format(",every={}", is.every);
    }

    /// Writes DuoAttention's file, with numbers that are equal, and some a little outside of 0 to 1.
    std::string head_file(const TempFolder& folder) {
        const int n_kv = layout.n_kv_heads() / layout.n_layers();
        const std::filesystem::path path = folder.path() / "heads.tsv";
        std::ofstream file(path);
        Vector numbers;
        for (int layer = 0; layer < layout.n_layers(); ++layer)
            for (int g = 0; g < n_kv; ++g) {
                const double number = below(3) == 0 ? one_of<double>({0, 1, 0.5, -0.01, 1.000001, 0.25})
                                                    : static_cast<double>(random_()) / 4294967296.0;
                numbers.push_back(number);
                file << fmt::format("{:.18e}{}", number, g + 1 < n_kv ? '\t' : '\n');
            }
        const int n = static_cast<int>(numbers.size()), kind = below(3);
        const double sparsity = static_cast<double>(below(n + 1)) / n;
        const double threshold = kind == 1 ? one_of<double>({0.25, 0.3, 1}) : 0.5;
        keeps_all = retrieval_heads(numbers, kind == 2 ? &sparsity : nullptr, threshold);
        return kind == 0   ? path.string()
               : kind == 1 ? fmt::format("({} threshold={})", path.string(), threshold)
                           : fmt::format("({} sparsity={:.17g})", path.string(), sparsity);
    }

    void fill() {
        heads.resize(to_index(layout.n_kv_heads()));
        // Means of few values are exact over such numbers of rows and of query heads.
        bool is_exact = std::has_single_bit(static_cast<unsigned>(n_kept_rows));
        for (const keyhole::Unit& unit : units) {
            std::size_t n_readers = 0;
            for (int g = unit.first; g < unit.last; ++g) n_readers += layout.kv_head(g).readers.size();
            is_exact = is_exact && std::has_single_bit(n_readers);
        }
        const bool ties = is_exact && below(2) == 0;
        if (ties) eps = 0;
        std::normal_distribution<float> normal;
        for (const keyhole::Unit& unit : units) {
            const std::set<int> positions = some_positions();
            for (int g = unit.first; g < unit.last; ++g) {
                Stored& head = heads[to_index(g)];
                head.positions.assign(positions.begin(), positions.end());
                head.values.resize(positions.size());
                for (std::vector<float>& value : head.values)
                    for (int c = 0; c < kDim && model != nullptr; ++c) value.push_back(normal(random_));
                const std::size_t n_readers = layout.kv_head(g).readers.size();
                for (std::size_t r = 0; r < n_readers && reads_rows(); ++r) {
                    head.rows.emplace_back(to_index(n_kept_rows));
                    for (int k = 0; k < n_kept_rows; ++k)
                        for (const int p : positions)
                            head.rows.back()[to_index(k)].push_back(p > row - n_kept_rows + 1 + k ? 0.0f
                                                                    : ties ? static_cast<float>(below(4)) / 4
                                                                           : std::abs(normal(random_)));
                }
                if (!after_prompt && !starts_with("duo") && below(6) == 0)
                    head.pinned.insert(head.positions[to_index(below(static_cast<int>(positions.size())))]);
            }
        }
    }

    std::set<int> some_positions() {
        std::set<int> positions = {row};
        if (after_prompt) {
            for (int p = 0; p < row; ++p) positions.insert(p);
            return positions;
        }
        // The first tokens of a streaming head never leave.
        for (int p = 0; p < is.sinks && starts_with("duo"); ++p) positions.insert(p);
        const int n = std::min(row + 1, 1 + below(is.budget + 12));
        while (static_cast<int>(positions.size()) < n) positions.insert(below(row + 1));
        return positions;
    }

    /// Lets the engine read a prompt twice, in parts, with rows at random.
    void read_again() {
        SecondPass pass(model, random_);
        keyhole::RunSpec run;
        for (int p = 0; p < n_prompt; ++p) run.prompt_tokens.push_back(below(250));
        run.lanes = {keyhole::parse_lane_spec("kvzip:budget=1")};
        const keyhole::RunContext context(model, pass, run, nullptr);
        const int part = below(2) == 0 ? keyhole::kRepeated : 1 + below(n_prompt);
        repeats = keyhole::LookAhead().repeats(context, run.lanes.front(), {}, part);
        for (int g = 0; g < layout.n_kv_heads(); ++g) {
            again.emplace_back();
            for (int p = 0; p < n_prompt; ++p)
                again.back().push_back(
                    repeated(pass, layout.kv_head(g), layout.n_heads(), n_prompt, part, p));
        }
    }
};

// --- the slow reference ----------------------------------------------------------------------------------

/// What the rules say of a unit: which of its tokens may leave, and what they are ranked by.
struct Ranked {
    std::set<int> guarded;
    int n_by_rule = 0;  ///< of these, sinks and newest tokens that nothing else protects
    std::vector<Competitor> competing;
    Vector products;  ///< CriticalKV's second stage, by competing token
    int budget = 0;   ///< of the unit, all its tokens counted
    bool evicts = true;
};

int layer_of(const Round& round, const keyhole::Unit& unit) {
    return round.layout.kv_head(unit.first).owner_layer;
}

/// Returns the budget of a layer; those that borrow KV heads do not count.
int budget_of(const Round& round, int layer) {
    if (round.is.beta.over == 0) return round.is.budget;
    int n_layers = 0, place = 0;
    for (int l = 0; l < round.layout.n_layers(); ++l) {
        if (l == layer) place = n_layers;
        n_layers += round.layout.owns(l) ? 1 : 0;
    }
    const int kept = round.is.recent + round.is.sinks;
    const std::vector<int> line =
        pyramid_line(n_layers, round.is.budget, kept, round.n_prompt, round.is.beta, round.is.as_code);
    return std::max(line[to_index(place)] + kept, 1);  // a head keeps a token at least
}

/// Joins the values of query heads, or of KV heads, [head][token].
Vector joined(keyhole::Pool pool, const std::vector<Vector>& of_head) {
    Vector out = of_head.front();
    for (std::size_t h = 1; h < of_head.size(); ++h)
        for (std::size_t i = 0; i < out.size(); ++i)
            out[i] = pool == keyhole::Pool::max ? std::max(out[i], of_head[h][i]) : out[i] + of_head[h][i];
    if (pool == keyhole::Pool::mean)
        for (double& x : out) x /= static_cast<double>(of_head.size());
    return out;
}

/// Returns the sum over the output's channels of |W_o v|, the mean over the query heads of the KV head.
double reach_of(const keyhole::Model& model, const keyhole::KvHead& head, const std::vector<float>& value) {
    static std::map<const void*, std::vector<float>> known;
    double sum = 0;
    for (const keyhole::HeadRef& reader : head.readers) {
        const keyhole::Weight& w = model.weights().layers[to_index(reader.layer)].o;
        std::vector<float>& rows = known[&w];
        if (rows.empty()) {
            rows.resize(to_index(w.rows * w.cols));
            keyhole::widen_rows(w, 0, w.rows, rows.data());
        }
        for (std::int64_t r = 0; r < w.rows; ++r) {
            double dot = 0;
            for (int c = 0; c < kDim; ++c)
                dot +=
                    double{rows[to_index(r * w.cols + reader.head * kDim + c)]} * double{value[to_index(c)]};
            sum += std::abs(dot) / static_cast<double>(head.readers.size());
        }
    }
    return sum;
}

Ranked ranked(const Round& round, const keyhole::Unit& unit) {
    Ranked out;
    const std::vector<std::int32_t>& positions = round.heads[to_index(unit.first)].positions;
    const std::set<int> pinned = round.pinned_in(unit);
    const std::size_t n = positions.size();
    out.budget = budget_of(round, layer_of(round, unit));
    out.evicts = round.keeps_all.empty() || !round.keeps_all[to_index(unit.first)];
    std::vector<std::size_t> free;
    for (std::size_t i = 0; i < n; ++i) {
        const int p = positions[i];
        const bool by_rule = p < round.is.sinks || i + to_index(round.is.recent) >= n;
        const bool by_hand = (p >= round.is.protect_from && p <= round.is.protect_to) || pinned.contains(p);
        out.n_by_rule += by_rule && !by_hand;
        if (by_rule || by_hand)
            out.guarded.insert(p);
        else
            free.push_back(i);
    }
    Vector plain(n, 0.0), reach;
    if (round.reads_rows()) {
        std::vector<Vector> means, reaches;
        for (int g = unit.first; g < unit.last; ++g) {
            const Stored& head = round.heads[to_index(g)];
            for (const auto& rows : head.rows) {
                Vector& mean = means.emplace_back(n, 0.0);
                for (const std::vector<float>& row : rows)
                    for (std::size_t i = 0; i < n; ++i) mean[i] += double{row[i]};
                for (double& x : mean) x /= static_cast<double>(rows.size());
            }
            if (!round.starts_with("critical")) continue;
            Vector& of_head = reaches.emplace_back();
            for (const std::vector<float>& value : head.values)
                of_head.push_back(reach_of(*round.model, round.layout.kv_head(g), value));
        }
        plain = joined(round.policy.pool, means);
        if (!reaches.empty()) reach = joined(round.policy.pool, reaches);
    }
    Vector value = plain;
    if (round.is.kernel != 0) value = smoothed(plain, free, std::abs(round.is.kernel), round.is.kernel < 0);
    // Averages that are equal but for rounding are no plateau.
    const bool has_plateaus = round.is.kernel < 0 || (round.is.kernel > 0 && round.eps == 0);
    for (const std::size_t i : free) {
        if (!round.again.empty())
            value[i] = positions[i] < round.n_prompt
                           ? round.again[to_index(unit.first)][to_index(positions[i])]
                           : std::numeric_limits<double>::infinity();
        out.competing.push_back({value[i], has_plateaus ? plain[i] : 0.0, positions[i], unit.first});
        if (!reach.empty()) out.products.push_back((value[i] + 1e-4) * reach[i]);
    }
    return out;
}

/// Returns whether units that share must lose tokens: after a prompt for any of them, later for all together.
bool is_due(const Round& round, const std::vector<const Ranked*>& sharing) {
    const int t = round.row - round.n_prompt + 1;
    if (t % round.is.every != 0 || !(t > 0 ? round.is.in_decode : round.is.in_prompt)) return false;
    int stored = 0, most = 0;
    bool any = false;
    for (const Ranked* unit : sharing) {
        const int own = static_cast<int>(unit->guarded.size() + unit->competing.size()),
                  from = unit->budget + std::max(round.is.buffer, 1);
        any = any || own >= from;
        stored += own;
        most += from;
    }
    return round.after_prompt ? any : stored >= most;
}

/// Returns what is wrong with the tokens that a unit keeps where it keeps `room` of the competing ones;
/// empty: nothing. By rule G7, and by G4 where rounding cannot swap tokens.
std::string wrong_with(const Round& round, const Ranked& unit, const std::set<int>& kept, int room,
                       bool* decided) {
    std::vector<Competitor> sorted = unit.competing;
    std::vector<bool> stays;
    for (const Competitor& token : unit.competing) stays.push_back(kept.contains(token.position));
    for (const int p : unit.guarded)
        if (!kept.contains(p)) return fmt::format("protected token {} left", p);
    const int size = static_cast<int>(unit.guarded.size()) + room;
    if (static_cast<int>(kept.size()) != size) return fmt::format("keeps {}, not {}", kept.size(), size);
    if (!unit.products.empty())
        return wrong_with_two_stages(unit.competing, unit.products, stays,
                                     std::max(unit.budget / 2 - static_cast<int>(unit.guarded.size()), 0),
                                     kEps);
    std::sort(sorted.begin(), sorted.end());
    const bool is_sure = is_decided(sorted, room, round.eps);
    *decided = *decided && is_sure;
    double worst_kept = std::numeric_limits<double>::infinity(), best_gone = -worst_kept;
    for (std::size_t i = 0; i < sorted.size(); ++i) {
        const bool is_kept = kept.contains(sorted[i].position);
        if (is_sure && is_kept != (static_cast<int>(i) < room))
            return fmt::format("token {} is {}", sorted[i].position, is_kept ? "kept" : "gone");
        double& bound = is_kept ? worst_kept : best_gone;
        bound = is_kept ? std::min(bound, sorted[i].value) : std::max(bound, sorted[i].value);
    }
    if (best_gone > worst_kept && !is_near(best_gone, worst_kept, kEps))
        return fmt::format("evicted {} and kept {}", best_gone, worst_kept);
    return {};
}

struct Tally {
    int n = 0, n_undecided = 0;
};

/// Compares all kept sets of a round, [unit], with the reference.
std::string compare(const Round& round, const std::vector<std::set<int>>& kept, Tally& tally) {
    std::map<int, std::vector<std::size_t>> groups;  // of units that share
    std::vector<Ranked> all;
    for (std::size_t u = 0; u < round.units.size(); ++u) {
        all.push_back(ranked(round, round.units[u]));
        using Shares = Numbers::Shares;
        groups[round.is.shares == Shares::none    ? static_cast<int>(u)
               : round.is.shares == Shares::layer ? layer_of(round, round.units[u])
                                                  : 0]
            .push_back(u);
    }
    for (const auto& [group, units] : groups) {
        std::vector<const Ranked*> sharing;
        for (const std::size_t u : units) sharing.push_back(&all[u]);
        const bool due = sharing.front()->evicts && is_due(round, sharing);
        Rooms rooms;
        std::vector<Competitor> tokens;
        std::vector<int> own;
        for (std::size_t i = 0; i < units.size(); ++i) {
            const Ranked& unit = *sharing[i];
            own.push_back(std::max(unit.budget - static_cast<int>(unit.guarded.size()), 0));
            for (Competitor token : unit.competing) {
                token.head = static_cast<int>(i);
                tokens.push_back(token);
            }
        }
        const bool shares = round.is.shares != Numbers::Shares::none;
        if (shares) rooms = shared_rooms(tokens, own, round.is.floor, round.is.as_code, round.eps);
        int total = 0, wanted = 0;
        for (std::size_t i = 0; i < units.size(); ++i) {
            const Ranked& unit = *sharing[i];
            const std::set<int>& set = kept[units[i]];
            const auto where = [&](const std::string& what) {
                return what.empty() ? what : fmt::format("unit {}: {}", units[i], what);
            };
            const int n_stored = static_cast<int>(unit.guarded.size() + unit.competing.size());
            if (!due) {
                if (static_cast<int>(set.size()) != n_stored) return where("evicts where nothing is due");
                continue;
            }
            // Alone, sinks and newest tokens leave where others are protected beyond the budget: CpuSelect
            // tests that.
            if (!shares && static_cast<int>(unit.guarded.size()) > unit.budget) {
                if (static_cast<int>(set.size()) !=
                    std::max(unit.budget, static_cast<int>(unit.guarded.size()) - unit.n_by_rule))
                    return where("keeps too many or too few");
                continue;
            }
            bool decided = rooms.is_decided;
            int room = std::min(own[i], static_cast<int>(unit.competing.size()));
            if (shares && decided) room = rooms.of_head[i];
            if (shares && !decided)
                room = static_cast<int>(set.size()) - static_cast<int>(unit.guarded.size());
            total += room;
            wanted += shares ? rooms.of_head[i] : room;
            if (const std::string what = where(wrong_with(round, unit, set, room, &decided)); !what.empty())
                return what;
            if (static_cast<int>(set.size()) == n_stored) continue;
            ++tally.n;
            tally.n_undecided += decided ? 0 : 1;
        }
        if (total != wanted && !round.is.as_code) return fmt::format("{} tokens stay, not {}", total, wanted);
    }
    return {};
}

// --- the engine --------------------------------------------------------------------------------------------

/// Selects as a prompt's end does.
std::vector<std::set<int>> select_after_prompt(const Round& round) {
    const std::vector<std::int32_t> positions = keyhole::prompt_positions(round.n_prompt);
    struct OfUnit {
        std::vector<float> pooled, ties;
        std::vector<std::int32_t> guarded;
        int stored = 0;
    };
    std::vector<OfUnit> units(round.units.size());
    std::vector<keyhole::SharedChoice> choices;
    for (std::size_t u = 0; u < units.size(); ++u) {
        const keyhole::Unit& unit = round.units[u];
        const keyhole::ResolvedPolicy& policy = keyhole::unit_policy(round.layout, round.policy, unit.first);
        OfUnit& own = units[u];
        own.pooled.resize(positions.size());
        own.stored = policy.stored;
        std::vector<keyhole::ChoiceHead> heads;
        std::map<std::pair<int, int>, const std::vector<std::vector<float>>*>
            rows;  // by layer and query head
        for (int g = unit.first; g < unit.last; ++g) {
            keyhole::ChoiceHead& head = heads.emplace_back(keyhole::ChoiceHead{positions});
            for (const std::vector<float>& value : round.heads[to_index(g)].values)
                head.values.insert(head.values.end(), value.begin(), value.end());
            std::size_t r = 0;
            for (const keyhole::HeadRef& reader : round.layout.kv_head(g).readers)
                if (round.reads_rows())
                    rows[{reader.layer, reader.head}] = &round.heads[to_index(g)].rows[r++];
        }
        std::vector<float> win;
        if (round.reads_rows())
            win = keyhole::pool_last_rows(round.layout, unit, policy, round.n_prompt,
                                          [&](const keyhole::HeadRef& reader, int row) {
                                              return rows.at({reader.layer, reader.head})
                                                  ->at(to_index(row - round.row + round.n_kept_rows - 1))
                                                  .data();
                                          });
        own.ties = keyhole::choose_on_host({round.layout,
                                            unit,
                                            policy,
                                            round.row,
                                            kDim,
                                            nullptr,
                                            heads,
                                            positions,
                                            win,
                                            round.repeats.get(),
                                            round.model.get(),
                                            {}},
                                           own.pooled, own.guarded);
        choices.push_back({0, unit, positions, own.pooled, own.ties, own.guarded, &own.stored});
    }
    keyhole::share_prompt_budgets(
        round.layout, round.n_prompt,
        [&](std::size_t) -> const keyhole::ResolvedPolicy& { return round.policy; }, choices);
    std::vector<std::set<int>> kept;
    for (std::size_t u = 0; u < units.size(); ++u) {
        const OfUnit& own = units[u];
        std::vector<int> victims;
        (void)keyhole::prompt_victims(keyhole::unit_policy(round.layout, round.policy, round.units[u].first),
                                      round.n_prompt, own.stored, own.pooled, own.ties, own.guarded, victims);
        std::set<int>& set = kept.emplace_back(positions.begin(), positions.end());
        for (const int victim : victims) set.erase(victim);
    }
    return kept;
}

/// Selects as a row's end does.
std::vector<std::set<int>> select_after_row(const Round& round) {
    using keyhole::cpu::CpuKvCache;
    const std::unique_ptr<CpuKvCache> cache = round.model != nullptr
                                                  ? std::make_unique<CpuKvCache>(round.model)
                                                  : std::make_unique<CpuKvCache>(round.layout, kDim);
    keyhole::ResolvedPolicy policy = round.policy;
    policy.kv_dtype = keyhole::KvType::f32;
    for (keyhole::ResolvedPolicy& variant : policy.variants) variant.kv_dtype = keyhole::KvType::f32;
    cache->set_policy(policy);
    cache->reserve(64);
    cache->set_repeats(round.repeats);
    cache->begin_kept_rows(round.row - round.n_kept_rows + 1);
    const std::vector<float> none(kDim, 0.0f);
    for (int g = 0; g < round.layout.n_kv_heads(); ++g) {
        const Stored& head = round.heads[to_index(g)];
        for (std::size_t i = 0; i < head.positions.size(); ++i) {
            const int slot = cache->append(g, head.positions[i]);
            cache->write(g, slot, none.data(), head.values[i].empty() ? none.data() : head.values[i].data());
            std::size_t r = 0;
            for (const keyhole::HeadRef& reader : round.layout.kv_head(g).readers) {
                if (!round.reads_rows() || cache->window() == 0) break;
                const int of = reader.layer * round.layout.n_heads() + reader.head;
                for (int k = 0; k < round.n_kept_rows; ++k)
                    cache->kept_row(round.row - round.n_kept_rows + 1 + k, of)[slot] =
                        head.rows[r][to_index(k)][i];
                ++r;
            }
        }
        for (const int p : head.pinned) cache->set_pinned(g, p, true);
    }
    (void)keyhole::cpu::select_row(*cache, round.row);
    std::vector<std::set<int>> kept;
    for (const keyhole::Unit& unit : round.units) {
        const std::vector<std::int32_t> stored = cache->stored_positions(unit.first);
        for (int g = unit.first + 1; g < unit.last; ++g) EXPECT_EQ(cache->stored_positions(g), stored);
        kept.emplace_back(stored.begin(), stored.end());
    }
    return kept;
}

class SharedFieldSelections : public ::testing::TestWithParam<const char*> {};

TEST_P(SharedFieldSelections, AreRight) {
    const TempFolder folder("selections");
    std::mt19937 random(7);
    Tally tally;
    int n_rounds = 0, n_exact = 0;
    for (; tally.n < n_selections(); ++n_rounds) {
        const Round round(random, GetParam(), folder);
        n_exact += round.eps == 0 ? 1 : 0;
        const auto kept = round.after_prompt ? select_after_prompt(round) : select_after_row(round);
        const std::string what = compare(round, kept, tally);
        std::vector<std::vector<int>> stored;
        for (const Stored& head : round.heads)
            stored.emplace_back(head.positions.begin(), head.positions.end());
        ASSERT_EQ(what, "") << round.spec << ", prompt " << round.n_prompt << ", row " << round.row << ", "
                            << round.layout.n_layers() << " layers, " << round.layout.n_kv_heads()
                            << " KV heads, stored " << fmt::format("{}, kept {}", stored, kept);
    }
    RecordProperty("selections", tally.n);
    RecordProperty("undecided", tally.n_undecided);
    // Rare, but a round's units are undecided together: eight of the first hundred of one preset.
    EXPECT_LE(tally.n_undecided, std::max(20, 5 + tally.n / 50));
}

INSTANTIATE_TEST_SUITE_P(All, SharedFieldSelections,
                         ::testing::Values("pyramidkv", "pyramidkv:dialect=released", "adakv",
                                           "adakv:dialect=released", "kvzip", "duo", "critical"),
                         [](const auto& of) {
                             std::string name = of.param;
                             return name.substr(0, name.find(':')) +
                                    (name.find(':') == std::string::npos ? "" : "AsReleased");
                         });

}  // namespace
}  // namespace reference::test_shared_selection
