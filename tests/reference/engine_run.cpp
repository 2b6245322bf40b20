#include "tests/reference/engine_run.h"

#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "engine/trace/record.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

namespace reference {
namespace {

using keyhole::RowOutput;

constexpr keyhole::RowRequest kAll{true, true, true, true, true};

struct EngineLane {
    std::unique_ptr<keyhole::KvCache> cache;
    keyhole::ResolvedPolicy policy;
    std::shared_ptr<const keyhole::Model> model;
};

/// Converts between a KV head's number over the whole model (owner layers in order) and (layer, KV head).
int kv_index(const Weights& w, int layer, int kv_head) {
    int owners_below = 0;
    for (int l = 0; l < w.owner_of(layer); ++l) owners_below += w.owns(l) ? 1 : 0;
    return owners_below * w.n_kv_heads + kv_head;
}
Gone gone_at(const Weights& w, int index, int position) {
    int layer = 0;
    for (int owners = index / w.n_kv_heads; owners > 0 || !w.owns(layer); ++layer)
        owners -= w.owns(layer) ? 1 : 0;
    return {layer, index % w.n_kv_heads, position};
}

void feed(keyhole::Backend& backend, EngineLane& lane, int token, int row, RowOutput& out) {
    const keyhole::LaneStep step{lane.cache.get(), token, row, kAll, &out};
    backend.step({&step, 1});
}

void process_prompt(keyhole::Backend& backend, std::vector<EngineLane>& lanes, std::span<const int> prompt,
                    LaneRows& rows) {
    std::map<const keyhole::Model*, std::vector<keyhole::LanePrefill>> oneshot;
    for (std::size_t n = 0; n < lanes.size(); ++n) {
        rows[n].emplace_back();
        if (lanes[n].policy.prefill == keyhole::PrefillMode::oneshot) {
            oneshot[lanes[n].model.get()].push_back({lanes[n].cache.get(), kAll, &rows[n].back()});
            continue;
        }
        for (std::size_t row = 0; row < prompt.size(); ++row)
            feed(backend, lanes[n], prompt[row], static_cast<int>(row), rows[n].back());
    }
    for (const auto& [model, together] : oneshot) backend.prefill(prompt, together, nullptr, {});
}

template <class T>
std::string vector_difference(const char* name, const std::vector<T>& a, const std::vector<T>& b) {
    if (a.size() != b.size()) return fmt::format("{}: {} and {} values", name, a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i)
        if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0) return fmt::format("{} differs at {}", name, i);
    return {};
}

class Comparer {
  public:
    Comparer(const Weights& weights, Agreement& agreement) : weights_(weights), agreement_(agreement) {}

    void values(const std::string& lane, const RowOutput& out, const LaneRow& expected) {
        label_ = fmt::format("{} row {}", lane, expected.model.row);
        ASSERT_EQ(out.next_logits.size(), expected.model.next_logits.size()) << label_;
        const double scale = largest(expected.model.next_logits);
        for (std::size_t v = 0; v < out.next_logits.size(); ++v)
            note(agreement_.next_logits, "next logits", -1, -1, static_cast<int>(v), out.next_logits[v],
                 expected.model.next_logits[v], scale);
        for (int l = 0; l < weights_.n_layers; ++l) {
            for (int g = 0; g < weights_.n_kv_heads && weights_.owns(l); ++g) kv_head(out, expected, l, g);
            for (int h = 0; h < weights_.n_heads; ++h) query_head(out, expected, l, h);
        }
    }

  private:
    static double largest(const Vector& values) {
        double most = 1e-30;
        for (double value : values)
            if (!std::isnan(value)) most = std::max(most, std::abs(value));
        return most;
    }

    void note(double& worst, const char* what, int layer, int head, int at, double got, double expected,
              double scale) {
        const double share = std::isfinite(got) ? std::abs(got - expected) / scale / kTolerance : 1e9;
        if (share > std::max({agreement_.next_logits, agreement_.attention, agreement_.logits,
                              agreement_.noise, agreement_.scores}))
            agreement_.worst = fmt::format("{} of {} at (layer {}, head {}, {}): {} for {}", what, label_,
                                           layer, head, at, got, expected);
        worst = std::max(worst, share);
    }

    void kv_head(const RowOutput& out, const LaneRow& expected, int l, int g) {
        const int global = kv_index(weights_, l, g);
        const std::set<int>& attended = expected.attended[keyhole::to_index(l)][keyhole::to_index(g)];
        ASSERT_EQ(attended_positions(out, global), attended) << label_ << " KV head " << global;
        ASSERT_EQ(out.values.scores.size(), out.values.positions.size()) << label_;
        const Vector& scores = expected.scores[keyhole::to_index(l)][keyhole::to_index(g)];
        const double scale = largest(scores);
        for (auto i = keyhole::to_index(out.values.offset[keyhole::to_index(global)]);
             i < keyhole::to_index(out.values.offset[keyhole::to_index(global) + 1]); ++i) {
            const int p = out.values.positions[i];
            if (std::isnan(scores[keyhole::to_index(p)])) {  // nothing was ranked
                ASSERT_TRUE(std::isnan(out.values.scores[i])) << label_ << " position " << p;
                continue;
            }
            note(agreement_.scores, "score", l, g, p, out.values.scores[i], scores[keyhole::to_index(p)],
                 scale);
        }
    }

    void query_head(const RowOutput& out, const LaneRow& expected, int l, int h) {
        const int g = kv_index(weights_, l, h / (weights_.n_heads / weights_.n_kv_heads));
        const auto at =
            keyhole::to_index(out.values.head_offset[keyhole::to_index(l * weights_.n_heads + h)]);
        const auto first = keyhole::to_index(out.values.offset[keyhole::to_index(g)]);
        const auto last = keyhole::to_index(out.values.offset[keyhole::to_index(g) + 1]);
        ASSERT_EQ(out.values.head_offset[keyhole::to_index(l * weights_.n_heads + h) + 1],
                  static_cast<std::int64_t>(at + last - first));
        const auto layer = keyhole::to_index(l), head = keyhole::to_index(h);
        const double logit_scale = std::max(1.0, largest(expected.model.logits[layer][head]));
        for (std::size_t i = first; i < last; ++i) {
            const int p = out.values.positions[i];
            const auto column = keyhole::to_index(p);
            const std::size_t value = at + i - first;
            note(agreement_.attention, "attention", l, h, p, out.values.attention.at(value),
                 expected.model.attention[layer][head][column], 1.0);
            const bool hidden = !out.values.hidden.empty() && out.values.hidden[i] != 0;
            ASSERT_EQ(hidden, std::isnan(expected.model.logits[layer][head][column]))
                << label_ << " position " << p;
            if (hidden) {  // stored but not visible
                EXPECT_TRUE(std::isnan(out.values.logits.at(value))) << label_;
                continue;
            }
            note(agreement_.logits, "attention logit", l, h, p, out.values.logits.at(value),
                 expected.model.logits[layer][head][column], logit_scale);
            const double noise = expected.noise[layer][head][column];
            if (std::isnan(noise))
                EXPECT_TRUE(std::isnan(out.values.noise.at(value))) << label_;
            else
                note(agreement_.noise, "noise", l, h, p, out.values.noise.at(value), noise, 10.0);
        }
    }

    const Weights& weights_;
    Agreement& agreement_;
    std::string label_;
};

std::vector<Gone> gone_from(const RowOutput& out, const Weights& weights) {
    std::vector<Gone> gone;
    for (const keyhole::Eviction& e : out.evictions) gone.push_back(gone_at(weights, e.kv_head, e.position));
    return gone;
}

PositionSets stored_after(const RowOutput& out, const Weights& weights) {
    PositionSets stored = empty_sets(weights);
    for (std::size_t l = 0; l < stored.size(); ++l)
        for (std::size_t g = 0; g < stored[l].size() && weights.owns(static_cast<int>(l)); ++g)
            stored[l][g] = stored_positions(out, kv_index(weights, static_cast<int>(l), static_cast<int>(g)));
    return stored;
}

void compare_evictions(const std::string& spec, const RowOutput& out, const LaneRow& expected, Lane& lane,
                       const Weights& weights, Agreement& agreement) {
    const std::vector<Gone> gone = gone_from(out, weights);
    for (const keyhole::Eviction& e : out.evictions) ASSERT_EQ(e.row, expected.model.row) << spec;
    if (!expected.evictions.empty()) ++agreement.n_selections;
    if (gone == expected.evictions) return;
    ASSERT_LT(expected.margin, kNearTie)
        << spec << ": other evictions after row " << expected.model.row << ", score margin "
        << expected.margin << ", " << gone.size() << " for " << expected.evictions.size();
    ASSERT_EQ(gone.size(), expected.evictions.size()) << spec;
    ++agreement.n_near_ties;
    lane.set_stored(stored_after(out, weights));
}

void compare_lane(const Weights& weights, const Case& c, std::span<const int> prompt,
                  std::span<const int> decode, const std::vector<RowOutput>& rows, Agreement& agreement) {
    Lane lane(weights, c.policy, static_cast<int>(prompt.size()));
    lane.set_future(c.future);
    Comparer comparer(weights, agreement);
    std::vector<int> tokens(prompt.begin(), prompt.end());
    tokens.insert(tokens.end(), decode.begin(), decode.end());
    for (std::size_t row = 0; row < tokens.size(); ++row) {
        const LaneRow expected = lane.feed(tokens[row]);
        if (row + 1 < prompt.size()) continue;
        const RowOutput& out = rows[row + 1 - prompt.size()];
        comparer.values(c.spec, out, expected);
        if (::testing::Test::HasFatalFailure()) return;
        compare_evictions(c.spec, out, expected, lane, weights, agreement);
        if (::testing::Test::HasFatalFailure()) return;
    }
}

}  // namespace

Case preset_case(const std::string& preset, int budget, int n_generate) {
    Policy p;
    p.budget = preset == "full" ? 0 : budget;
    if (preset == "window") p.recent = budget;
    if (preset == "sink") {
        p.sinks = std::min(4, budget);
        p.recent = budget - p.sinks;
    }
    if (preset == "h2o") p.recent = budget * 50 / 100;
    if (preset == "tova") {
        p.alpha = 0;
        p.unit = Unit::layer;
    }
    if (preset == "keyformer") {
        p.recent = budget * 30 / 100;
        p.tau_end = 2;
        p.horizon = n_generate;
        p.noise = Noise::gumbel;
    }
    if (preset == "a2sf") p.alpha = 0.2;
    if (preset == "random") p.ranks = RanksBy::random;
    if (preset == "oracle") p.ranks = RanksBy::future;
    if (preset == "knorm") p.ranks = RanksBy::knorm;
    if (preset == "keydiff") {
        p.ranks = RanksBy::keydiff;
        p.stepwise = true;
        p.every = 128;
    }
    if (preset == "snapkv" || preset == "pyramidkv" || preset == "adakv") {
        p.ranks = RanksBy::observed;
        p.window = preset == "pyramidkv" ? 8 : 32;
        p.recent = std::min(p.window, budget);
        p.kernel = preset == "snapkv" ? 5 : 7;
        p.kernel_max = preset != "snapkv";
        p.phase = Phase::prompt;
        if (preset == "pyramidkv") p.beta = 20;
        if (preset == "adakv") p.shares = Shares::layer;
    }
    if (preset == "rkv") {
        p.ranks = RanksBy::likeness;
        p.window = 8;
        p.recent = std::min(8, budget);
        p.kernel = 7;
        p.kernel_max = true;
        p.buffer = 128;
    }
    if (preset == "expected") {
        p.ranks = RanksBy::expected;
        p.sinks = std::min(4, budget);
        p.phase = Phase::prompt;
        p.shares = Shares::layer;
    }
    if (preset == "tri") {
        p.ranks = RanksBy::tri;
        p.buffer = 128;
        p.phase = Phase::decode;
    }
    return {preset == "full" ? preset : fmt::format("{}:budget={}", preset, budget), p};
}

LaneRows run_engine(const std::shared_ptr<const keyhole::Model>& model, std::span<const std::string> specs,
                    std::span<const int> prompt, std::span<const int> decode, int n_threads) {
    std::string notice;
    const auto backend = keyhole::make_backend(model, {keyhole::BackendChoice::cpu, n_threads, 0}, &notice);
    return run_backend(*backend, model, specs, prompt, decode);
}

LaneRows run_backend(keyhole::Backend& backend, const std::shared_ptr<const keyhole::Model>& model,
                     std::span<const std::string> specs, std::span<const int> prompt,
                     std::span<const int> decode, const Futures& futures) {
    std::vector<EngineLane> lanes;
    for (const std::string& text : specs) {
        const keyhole::LaneSpec spec = keyhole::parse_lane_spec(text);
        const auto shared = keyhole::shared_model(model, spec.sharing);
        const auto policy =
            keyhole::resolve(spec.policy, static_cast<int>(prompt.size()), static_cast<int>(decode.size()),
                             keyhole::head_grid(shared->layout()));
        lanes.push_back({backend.make_cache(policy, shared != model ? shared : nullptr), policy, shared});
        if (lanes.size() <= futures.size()) lanes.back().cache->set_future(futures[lanes.size() - 1]);
    }
    LaneRows rows(specs.size());
    process_prompt(backend, lanes, prompt, rows);
    for (std::size_t t = 0; t < decode.size(); ++t) {
        std::vector<keyhole::LaneStep> steps;
        for (std::size_t n = 0; n < lanes.size(); ++n) {
            rows[n].emplace_back();
            steps.push_back({lanes[n].cache.get(), decode[t], static_cast<int>(prompt.size() + t), kAll,
                             &rows[n].back()});
        }
        backend.step(steps);
        for (std::size_t n = 0; n < lanes.size(); ++n)
            for (int g = 0; g < lanes[n].model->layout().n_kv_heads(); ++g) {
                const std::vector<std::int32_t> stored = lanes[n].cache->stored_positions(g);
                EXPECT_EQ(stored_positions(rows[n].back(), g), std::set<int>(stored.begin(), stored.end()))
                    << specs[n];
            }
    }
    return rows;
}

std::shared_ptr<const keyhole::FutureTable> future_table(const Weights& weights, const Lane::Future& future,
                                                         int n_prompt, const std::vector<int>& tokens) {
    auto table = std::make_shared<keyhole::FutureTable>();
    table->first_row = n_prompt - 1;
    table->n_columns = static_cast<int>(tokens.size());
    table->n_rows = table->n_columns - n_prompt + 1;
    table->tokens.assign(tokens.begin() + n_prompt, tokens.end());
    for (int r = 0; r < table->n_rows; ++r)
        for (int l = 0; l < weights.n_layers; ++l)
            for (int g = 0; g < weights.n_kv_heads && weights.owns(l); ++g) {
                if (r == 0) ++table->n_kv_heads;
                for (int p = 0; p < table->n_columns; ++p)
                    table->sums.push_back(p <= table->first_row + r
                                              ? static_cast<float>(future(l, g, table->first_row + r, p))
                                              : 0.0f);
            }
    return table;
}

std::set<int> attended_positions(const RowOutput& out, int kv_head) {
    const auto begin = out.values.positions.begin() + out.values.offset[keyhole::to_index(kv_head)];
    const auto end = out.values.positions.begin() + out.values.offset[keyhole::to_index(kv_head) + 1];
    EXPECT_TRUE(std::is_sorted(begin, end));
    return {begin, end};
}

std::set<int> stored_positions(const RowOutput& out, int kv_head) {
    std::set<int> stored = attended_positions(out, kv_head);
    for (const keyhole::Eviction& e : out.evictions)
        if (e.kv_head == kv_head) {
            EXPECT_EQ(stored.erase(e.position), 1u) << "evicted what was not there";
        }
    return stored;
}

std::string difference(const RowOutput& a, const RowOutput& b) {
    for (const std::string& found : {vector_difference("next logits", a.next_logits, b.next_logits),
                                     vector_difference("offset", a.values.offset, b.values.offset),
                                     vector_difference("positions", a.values.positions, b.values.positions),
                                     vector_difference("attention", a.values.attention, b.values.attention),
                                     vector_difference("logits", a.values.logits, b.values.logits),
                                     vector_difference("noise", a.values.noise, b.values.noise),
                                     vector_difference("scores", a.values.scores, b.values.scores),
                                     vector_difference("hidden", a.values.hidden, b.values.hidden),
                                     vector_difference("evictions", a.evictions, b.evictions)})
        if (!found.empty()) return found;
    return {};
}

Agreement compare_with_reference(const std::shared_ptr<const keyhole::Model>& model, const Weights& weights,
                                 std::span<const Case> cases, std::span<const int> prompt,
                                 std::span<const int> decode, keyhole::Backend* backend) {
    std::vector<std::string> specs;
    for (const Case& c : cases)  // the reference rounds nothing
        specs.push_back(keyhole::format_lane_spec(
            keyhole::changed_lane_spec(keyhole::parse_lane_spec(c.spec), "kv_dtype=f32")));
    std::vector<int> text(prompt.begin(), prompt.end());
    text.insert(text.end(), decode.begin(), decode.end());
    Futures futures;
    for (const Case& c : cases)
        futures.push_back(c.future ? future_table(c.weights != nullptr ? *c.weights : weights, c.future,
                                                  static_cast<int>(prompt.size()), text)
                                   : nullptr);
    std::unique_ptr<keyhole::Backend> own;
    std::string notice;
    if (backend == nullptr) {
        own = keyhole::make_backend(model, {keyhole::BackendChoice::cpu, 2, 0}, &notice);
        backend = own.get();
    }
    const LaneRows rows = run_backend(*backend, model, specs, prompt, decode, futures);
    Agreement agreement;
    for (std::size_t n = 0; n < cases.size(); ++n) {
        compare_lane(cases[n].weights != nullptr ? *cases[n].weights : weights, cases[n], prompt, decode,
                     rows[n], agreement);
        if (::testing::Test::HasFatalFailure()) break;
    }
    return agreement;
}

void expect_agreement(const Agreement& a, int n_least) {
    EXPECT_LT(a.next_logits, 1.0) << a.worst;
    EXPECT_LT(a.attention, 1.0) << a.worst;
    EXPECT_LT(a.scores, 1.0) << a.worst;
    EXPECT_LE(a.n_near_ties, 1 + a.n_selections / 100);
    EXPECT_GE(a.n_selections, n_least);
}

}  // namespace reference
