#include "app/lessons/lesson_claims.h"

#include "engine/analysis/compare.h"
#include "engine/analysis/doctor.h"
#include "engine/analysis/lane_so_far.h"
#include "engine/analysis/measure_table.h"
#include "engine/analysis/run_metrics.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace keyhole {

namespace {

using Unit = ClaimMeasure::Unit;

/// A measure of the table, over the claim's steps: it is one of the engine's, so name, unit and help are its.
ClaimMeasure of_table(std::string_view name, std::string_view words) {
    const Measure& m = measure(name);
    return {m.name, words, false, m.unit == "1" ? Unit::share : Unit::number, m.help};
}

const std::array kClaimMeasures = {
    ClaimMeasure{"answer", "answer", true, Unit::text,
                 "What the lane answers by itself, with its present settings."},
    ClaimMeasure{"next", "next word", true, Unit::text, "The token that the lane would say next."},
    ClaimMeasure{"text", "text", true, Unit::text, "The text that the lane read or wrote in the steps."},
    ClaimMeasure{"restored_next", "next word with {} given back", true, Unit::text,
                 "The token that the lane would say next with the tokens (words, range) back."},
    ClaimMeasure{"restored_kl", "KL that giving {} back makes", false, Unit::number,
                 "KL of the next tokens as they are to those with the tokens (words, range) back, nats."},
    ClaimMeasure{"tokens", "tokens read", false, Unit::number, "Tokens that the lane has read."},
    ClaimMeasure{"stored", "tokens stored a head", false, Unit::number,
                 "Tokens that a KV head stores, mean over KV heads; of words, range or part only those."},
    ClaimMeasure{"kept", "share kept", false, Unit::share,
                 "Share of the tokens (words, range, part) that the KV heads store, mean over KV heads."},
    ClaimMeasure{"heads_with_all", "heads that keep all", false, Unit::number,
                 "KV heads that store all of the tokens."},
    ClaimMeasure{"heads_with_any", "heads that keep any", false, Unit::number,
                 "KV heads that store any of the tokens."},
    ClaimMeasure{"evictions", "evictions", false, Unit::number,
                 "Evictions from KV heads during the steps, of the tokens alone if some are named."},
    ClaimMeasure{"first_eviction", "step of the first eviction", false, Unit::number,
                 "The first step whose processing evicted a token; no value: none did."},
    ClaimMeasure{"attention", "attention on {}", false, Unit::share,
                 "Share of attention on the tokens, mean over the steps and heads."},
    ClaimMeasure{"heads_above", "share of heads whose attention on {} is more than", false, Unit::share,
                 "Share of the heads that give the tokens more than `more_than`, mean over the steps."},
    ClaimMeasure{"overlap", "overlap of the kept tokens", false, Unit::share,
                 "Overlap of the kept sets of `lane` and `other`: common over either, mean over KV heads."},
    ClaimMeasure{"perplexity", "perplexity", false, Unit::number,
                 "exp of the mean of -ln p of the tokens read in the steps."},
    of_table("kl", "KL to lane 0"),
    ClaimMeasure{"kl_most", "largest KL to lane 0", false, Unit::number,
                 "The largest KL of lane 0 to the lane in the steps, nats."},
    of_table("agreement", "share of steps with lane 0's choice"),
    of_table("recent_share", "share of attention on the newest tokens"),
    of_table("lifetime", "steps that a token stays"),
    of_table("retained_mass", "share of the full attention that is kept"),
    ClaimMeasure{"bytes", "bytes of keys and values", false, Unit::bytes,
                 "Bytes of K and V that the lane stores."},
    ClaimMeasure{
        "paged_bytes", "bytes in pages of 16 tokens", false, Unit::bytes,
        "Bytes of K and V that a paged cache would hold: pages of 16 tokens, of all KV heads of a layer."},
    ClaimMeasure{"token_bytes", "bytes of one token", false, Unit::bytes,
                 "Bytes of K and V of one token in all layers."},
    ClaimMeasure{"kv_heads", "KV heads", false, Unit::number, "KV heads of the lane, over all layers."},
    ClaimMeasure{"broken", "broken checks of the doctor", false, Unit::number,
                 "Checks of the doctor that are broken."},
};

struct NoValue {
    std::string why;
};
struct Pending {};

/// A claim's measure on one lane.
class Meter {
  public:
    Meter(const Claim& claim, const Evidence& evidence, int index)
        : claim_(claim), evidence_(evidence), history_(*evidence.history), index_(index) {
        // A lane that was just added answers before its first step.
        if (claim.measure == "answer") return;
        lane_ = lane_of(index);
        if (!(claim.tokens == TokenSet{})) {
            span_ = span_of(claim.tokens, history_, lane_);
            if (!span_) {
                if (claim.tokens.part == TokenSet::Part::all)
                    throw NoValue{"these tokens are not in the text"};
                empty_ = true;
            }
        }
        const ModelConfig& model = history_.run().config;
        if (claim.layer >= model.n_layers || claim.head >= model.n_heads)
            throw NoValue{fmt::format("this model has {} layers of {} heads", model.n_layers, model.n_heads)};
        const int first = history_.steps().front()->row, last = history_.last_row();
        first_row_ = first + 1;
        last_row_ = last;
        if (claim.steps) {
            first_row_ = first + claim.steps->first;
            last_row_ = std::min(first + claim.steps->second, last);
        }
    }

    std::string text() {
        if (claim_.measure == "answer") {
            if (to_index(index_) >= evidence_.lanes.size())
                throw NoValue{fmt::format("there is no lane {}", index_)};
            if (evidence_.answers.size() < evidence_.lanes.size()) throw Pending{};
            const LaneAnswer& answer = evidence_.answers[to_index(index_)];
            if (!answer.failure.empty()) throw NoValue{answer.failure};
            if (!answer.complete) throw Pending{};
            return answer.text;
        }
        if (claim_.measure == "text") {
            std::string text;
            const std::vector<int>& tokens = history_.lanes()[to_index(lane_)].tokens;
            for (int p = first_row_; p <= last_row_ && to_index(p) < tokens.size(); ++p)
                text += token(tokens[to_index(p)]);
            return text;
        }
        if (claim_.measure == "restored_next") return token(restored().with.front().id);
        return token(last().predicted);
    }

    double number() {
        const std::string_view name = claim_.measure;
        if (name == "restored_kl") return restored().kl;
        if (name == "tokens") return static_cast<double>(history_.lanes()[to_index(lane_)].tokens.size());
        if (name == "stored") return mean_of_heads([&](int g) { return double(n_stored(g)); });
        if (name == "kept")
            return empty_ ? 0 : mean_of_heads([&](int g) { return double(n_stored(g)) / n(); });
        if (name == "heads_with_all") return count_heads([&](int g) { return n_stored(g) == n(); });
        if (name == "heads_with_any") return count_heads([&](int g) { return n_stored(g) > 0; });
        if (name == "evictions") return n_evictions();
        if (name == "first_eviction") return first_eviction();
        if (name == "attention") return attention(false);
        if (name == "heads_above") return attention(true);
        if (name == "overlap") return overlap();
        if (name == "perplexity")
            return std::exp(mean_of_rows([](const LaneRecord& r) { return -double(r.log_prob); }));
        if (name == "kl") return mean_of_rows(kl_of);
        if (name == "kl_most") {
            double most = -1;
            for_rows([&](const LaneRecord& r) { most = std::max(most, kl_of(r)); });
            return most < 0 ? none() : most;
        }
        if (name == "agreement")
            return mean_of_rows([](const LaneRecord& r) {
                return r.agrees ? double(*r.agrees) : std::numeric_limits<double>::quiet_NaN();
            });
        if (name == "bytes") return double(last().use.stored_bytes);
        if (name == "paged_bytes") return paged();
        if (name == "token_bytes") return double(last().info->token_bytes);
        if (name == "kv_heads") return history_.layout(lane_).n_kv_heads();
        if (name == "broken") {
            const auto findings = examine(history_, lane_, history_.last_row());
            return double(std::count_if(findings.begin(), findings.end(),
                                        [](const Finding& f) { return f.state == Finding::State::broken; }));
        }
        const LaneMetrics means = run_metrics(history_)[to_index(lane_)];
        for (const LaneMean& mean : lane_means())
            if (mean.name == name) return mean.of(means);
        return none();
    }

  private:
    static double none() { return std::numeric_limits<double>::quiet_NaN(); }
    static double kl_of(const LaneRecord& r) { return r.kl ? double(*r.kl) : none(); }

    int lane_of(int index) const {
        if (index >= static_cast<int>(evidence_.lanes.size()) || evidence_.lanes[to_index(index)] < 0)
            throw NoValue{fmt::format("there is no lane {}", index)};
        return evidence_.lanes[to_index(index)];
    }
    const LaneRecord& last() const {
        const LaneRecord* record = history_.lane_record(history_.last_row(), lane_);
        if (record == nullptr) throw NoValue{"the lane has no step there"};
        return *record;
    }
    std::string token(int id) const { return history_.run().token_bytes[to_index(id)]; }

    Counterfactual restored() const {
        if (!span_) throw NoValue{"it needs words or a range"};
        if (!evidence_.restored) throw NoValue{"a trace cannot be run again"};
        const auto found = evidence_.restored({index_, span_->first, span_->size(), history_.last_row()});
        if (!found) throw Pending{};
        if (found->with.empty()) throw NoValue{"no next token is known"};
        return *found;
    }

    /// Calls `use` for the KV heads that the claim is about.
    template <class Use>
    void for_heads(Use use) const {
        const KvLayout& layout = history_.layout(lane_);
        for (int g = 0; g < layout.n_kv_heads(); ++g) {
            const auto& readers = layout.kv_head(g).readers;
            if (std::any_of(readers.begin(), readers.end(), [&](const HeadRef& at) {
                    return (claim_.layer < 0 || at.layer == claim_.layer) &&
                           (claim_.head < 0 || at.head == claim_.head);
                }))
                use(g);
        }
    }
    template <class Value>
    double mean_of_heads(Value value) const {
        double sum = 0;
        int n_heads = 0;
        for_heads([&](int g) {
            sum += value(g);
            ++n_heads;
        });
        return n_heads == 0 ? none() : sum / n_heads;
    }
    template <class Is>
    double count_heads(Is is) const {
        int n_heads = 0;
        if (!empty_) for_heads([&](int g) { n_heads += is(g) ? 1 : 0; });
        return n_heads;
    }
    TokenSpan all_of() const { return span_.value_or(TokenSpan{0, history_.last_row()}); }
    int n() const { return all_of().size(); }
    int n_stored(int g) const {
        if (empty_) return 0;
        int count = 0;
        for (int p = all_of().first; p <= all_of().last; ++p)
            count += history_.stored(lane_, g, p, history_.last_row()) ? 1 : 0;
        return count;
    }

    double paged() const {
        const std::int64_t token_bytes = last().info->token_bytes;
        if (token_bytes == 0) return none();
        return paged_bytes(history_.layout(lane_), stored_sets(history_, lane_, history_.last_row()),
                           token_bytes);
    }

    template <class Use>
    void for_rows(Use use) const {
        for (int row = first_row_; row <= last_row_; ++row)
            if (const LaneRecord* record = history_.lane_record(row, lane_)) use(*record);
    }
    template <class Value>
    double mean_of_rows(Value value) const {
        double sum = 0;
        int count = 0;
        for_rows([&](const LaneRecord& record) {
            const double v = value(record);
            if (std::isnan(v)) return;
            sum += v;
            ++count;
        });
        return count == 0 ? none() : sum / count;
    }

    /// Evictions after the prompt belong to the prompt's last row, which `steps` counts as 0.
    int first_row_with_evictions() const { return claim_.steps ? first_row_ : history_.steps().front()->row; }
    double n_evictions() const {
        int count = 0;
        for (int row = first_row_with_evictions(); row <= last_row_; ++row)
            if (const LaneRecord* record = history_.lane_record(row, lane_))
                for (const Eviction& e : record->evictions)
                    count += !empty_ && all_of().holds(e.position) ? 1 : 0;
        return count;
    }
    double first_eviction() const {
        for (int row = first_row_with_evictions(); row <= last_row_; ++row)
            if (const LaneRecord* record = history_.lane_record(row, lane_))
                for (const Eviction& e : record->evictions)
                    if (!empty_ && all_of().holds(e.position)) return row;
        return none();
    }

    /// counts: the share of heads above the limit, else the mean share.
    double attention(bool counts) const {
        const ModelConfig& model = history_.run().config;
        const int first = claim_.steps ? first_row_ : history_.steps().front()->row;
        std::vector<double> sums(to_index(model.n_layers * model.n_heads), 0);
        std::vector<float> row_values(to_index(history_.n_positions()));
        int n_rows = 0;
        for (int row = first; row <= last_row_; ++row) {
            bool known = true;
            for_query_heads([&](int layer, int head) {
                if (!known || !history_.attention_row(lane_, row, layer, head, row_values)) {
                    known = false;
                    return;
                }
                double& sum = sums[to_index(layer * model.n_heads + head)];
                for (int p = all_of().first; p <= std::min(all_of().last, row); ++p)
                    sum += double(row_values[to_index(p)]);
            });
            n_rows += known ? 1 : 0;
        }
        if (n_rows == 0) throw NoValue{"no attention is recorded for these steps"};
        double total = 0;
        int n_heads = 0;
        for_query_heads([&](int layer, int head) {
            const double share = sums[to_index(layer * model.n_heads + head)] / n_rows;
            total += counts ? (share > claim_.more_than ? 1 : 0) : share;
            ++n_heads;
        });
        return total / n_heads;
    }
    template <class Use>
    void for_query_heads(Use use) const {
        const ModelConfig& model = history_.run().config;
        for (int layer = 0; layer < model.n_layers; ++layer)
            for (int head = 0; head < model.n_heads; ++head)
                if ((claim_.layer < 0 || layer == claim_.layer) && (claim_.head < 0 || head == claim_.head))
                    use(layer, head);
    }

    double overlap() const {
        const int other = lane_of(claim_.other);
        const KvLayout& finer = finer_layout(history_, lane_, other);
        double sum = 0;
        int n_heads = 0;
        for (int g = 0; g < finer.n_kv_heads(); ++g) {
            const HeadRef at = finer.kv_head(g).readers.front();
            if ((claim_.layer >= 0 && at.layer != claim_.layer) ||
                (claim_.head >= 0 && at.head != claim_.head))
                continue;
            sum += held_by(history_, lane_, other, g, history_.last_row()).overlap();
            ++n_heads;
        }
        return n_heads == 0 ? none() : sum / n_heads;
    }

    const Claim& claim_;
    const Evidence& evidence_;
    const RunHistory& history_;
    int index_ = 0, lane_ = 0;
    std::optional<TokenSpan> span_;
    bool empty_ = false;  // the part has no tokens yet
    int first_row_ = 0, last_row_ = 0;
};

bool holds(const Claim& claim, double value) {
    switch (claim.is) {
        case Claim::Is::equal:
            return std::abs(value - claim.value) <= 1e-9 * std::max(1.0, std::abs(claim.value));
        case Claim::Is::above:
            return value > claim.value;
        case Claim::Is::below:
            return value < claim.value;
        case Claim::Is::at_least:
            return value >= claim.value;
        case Claim::Is::at_most:
            return value <= claim.value;
        case Claim::Is::contains:
        case Claim::Is::lacks:
            break;
    }
    return false;
}

std::string value_text(Unit unit, double value) {
    if (std::isnan(value)) return "no value";
    if (unit == Unit::share) {
        const double percent = 100 * value;
        return fmt::format("{:.{}f} %", percent, percent == 0 ? 0 : percent < 1 ? 2 : percent < 9.95 ? 1 : 0);
    }
    if (unit == Unit::bytes) {
        if (std::abs(value) < 1e4) return fmt::format("{} bytes", static_cast<std::int64_t>(value));
        if (std::abs(value) < 1e6) return fmt::format("{:.0f} KB", 1e-3 * value);
        return fmt::format("{:.1f} MB", 1e-6 * value);
    }
    if (value == std::round(value) && std::abs(value) < 1e9)
        return fmt::format("{}", static_cast<std::int64_t>(value));
    return std::abs(value) >= 100    ? fmt::format("{:.0f}", value)
           : std::abs(value) >= 0.01 ? fmt::format("{:.3g}", value)
                                     : fmt::format("{:.2g}", value);
}

std::string one_line(std::string text) {
    for (char& c : text)
        if (c == '\n' || c == '\r' || c == '\t') c = ' ';
    const std::size_t begin = text.find_first_not_of(' ');
    return begin == std::string::npos ? "" : text.substr(begin);
}

Unit unit_of(const Claim& claim) {
    const ClaimMeasure* measure = find_claim_measure(claim.measure);
    if (measure == nullptr || claim.over) return Unit::number;
    return measure->unit;
}

}  // namespace

const ClaimMeasure* find_claim_measure(std::string_view name) {
    for (const ClaimMeasure& measure : kClaimMeasures)
        if (measure.name == name) return &measure;
    return nullptr;
}

std::vector<std::string_view> claim_measure_names() {
    std::vector<std::string_view> names;
    for (const ClaimMeasure& measure : kClaimMeasures) names.push_back(measure.name);
    return names;
}

std::optional<TokenSpan> span_of(const TokenSet& tokens, const RunHistory& history, int lane) {
    const int n = static_cast<int>(history.lanes()[to_index(lane)].tokens.size());
    TokenSpan span{0, n - 1};
    if (!tokens.words.empty()) {
        const std::optional<TokenSpan> found = find_span(history, lane, tokens.words);
        if (!found) return std::nullopt;
        span = *found;
    } else if (tokens.range) {
        span = {tokens.range->first, std::min(tokens.range->last, n - 1)};
    } else if (tokens.part == TokenSet::Part::prompt) {
        span.last = std::min(history.n_prompt(), n) - 1;
    } else if (tokens.part == TokenSet::Part::generated) {
        span.first = history.n_prompt();
    }
    if (span.first > span.last) return std::nullopt;
    return span;
}

Measured measure_claim(const Claim& claim, const Evidence& evidence) {
    Measured out;
    if (evidence.history == nullptr || evidence.history->empty()) {
        out.pending = true;
        return out;
    }
    try {
        const ClaimMeasure* measure = find_claim_measure(claim.measure);
        if (measure == nullptr) throw NoValue{"unknown measure"};
        if (measure->is_text) {
            out.text = Meter(claim, evidence, claim.lane).text();
            out.holds = answer_holds(out.text, claim.text) == (claim.is == Claim::Is::contains);
            return out;
        }
        out.value = Meter(claim, evidence, claim.lane).number();
        if (claim.over) out.value /= Meter(claim, evidence, *claim.over).number();
        if (std::isnan(out.value)) throw NoValue{"no value"};
        out.holds = holds(claim, out.value);
    } catch (const NoValue& no) {
        out.fault = no.why;
    } catch (const Pending&) {
        out.pending = true;
    } catch (const Error& error) {
        out.fault = error.what();
    }
    return out;
}

/// Returns what a claim names: "“4821”", "tokens 0 to 3", "the prompt"; empty: nothing.
static std::string tokens_text(const TokenSet& tokens) {
    if (!tokens.words.empty()) return fmt::format("“{}”", printable_text(tokens.words));
    if (tokens.range)
        return tokens.range->size() == 1
                   ? fmt::format("token {}", tokens.range->first)
                   : fmt::format("tokens {} to {}", tokens.range->first, tokens.range->last);
    if (tokens.part == TokenSet::Part::prompt) return "the prompt";
    if (tokens.part == TokenSet::Part::generated) return "the text after the prompt";
    return "";
}

std::string claim_subject(const Claim& claim) {
    const ClaimMeasure* measure = find_claim_measure(claim.measure);
    std::string what = measure == nullptr ? claim.measure : std::string(measure->words);
    const std::string tokens = tokens_text(claim.tokens);
    if (const std::size_t gap = what.find("{}"); gap != std::string::npos)
        what.replace(gap, 2, tokens.empty() ? "all tokens" : tokens);
    else if (!tokens.empty())
        what += " of " + tokens;
    if (claim.more_than > 0) what += fmt::format(" {}", value_text(Unit::share, claim.more_than));
    what += fmt::format(", lane {}", claim.lane);
    if (claim.measure == "overlap") what += fmt::format(" with lane {}", claim.other);
    if (claim.over) what += fmt::format(" over lane {}", *claim.over);
    if (claim.layer >= 0) what += fmt::format(", L{}", claim.layer);
    if (claim.head >= 0) what += fmt::format("{}H{}", claim.layer >= 0 ? "." : ", ", claim.head);
    if (claim.steps) what += fmt::format(", steps {} to {}", claim.steps->first, claim.steps->second);
    return what;
}

std::string claim_limit(const Claim& claim) {
    const std::string value = claim.is == Claim::Is::contains || claim.is == Claim::Is::lacks
                                  ? printable_text(claim.text)
                                  : value_text(unit_of(claim), claim.value);
    static constexpr std::array<std::string_view, 7> kWords = {"is",      "above",    "below", "at least",
                                                               "at most", "contains", "lacks"};
    return fmt::format("{} {}", kWords[static_cast<std::size_t>(claim.is)], value);
}

std::string claim_text(const Claim& claim) {
    return fmt::format("{}: {}", claim_subject(claim), claim_limit(claim));
}

std::string measured_text(const Claim& claim, const Measured& measured) {
    if (measured.pending) return "…";
    if (!measured.fault.empty()) return measured.fault;
    const ClaimMeasure* measure = find_claim_measure(claim.measure);
    if (measure != nullptr && measure->is_text) {
        const std::string text = printable_text(one_line(measured.text));
        return text.empty() ? "nothing" : text;
    }
    return value_text(unit_of(claim), measured.value);
}

std::string with_values(std::string_view text, std::span<const Claim> claims,
                        std::span<const Measured> measured) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const std::size_t close = text[i] == '{' ? text.find('}', i) : std::string_view::npos;
        std::size_t n = 0;
        bool number = close != std::string_view::npos && close > i + 1 && close < i + 4;
        for (std::size_t k = i + 1; number && k < close; ++k) {
            number = text[k] >= '0' && text[k] <= '9';
            n = 10 * n + static_cast<std::size_t>(text[k] - '0');
        }
        if (!number || n == 0 || n > claims.size()) {
            out += text[i];
            continue;
        }
        out += n <= measured.size() ? measured_text(claims[n - 1], measured[n - 1]) : "…";
        i = close;
    }
    return out;
}

}  // namespace keyhole
