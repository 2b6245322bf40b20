#include "app/cli/decode_report.h"

#include "app/base/termination.h"
#include "app/cli/json_head.h"
#include "app/cli/metrics_table.h"
#include "app/cli/output.h"
#include "engine/analysis/selection_counts.h"
#include "engine/base/counted.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/export/run_json.h"
#include "engine/policy/lane_spec.h"

#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

namespace keyhole {

namespace {

std::string lane_text(const RunHistory& history, int lane) {
    const std::vector<int>& tokens = history.lanes()[to_index(lane)].tokens;
    return text_of_tokens(history.run(), std::span(tokens).subspan(to_index(history.n_prompt())));
}

void print_lane_name(int lane, const LaneRecord& record) {
    print_out("\nlane {}  {}\n", lane, record.info->effective);
}

/// Returns what a lane holds at its end, such as "64 of 130 tokens a head".
std::string stored_text(const RunHistory& history, int lane, const LaneRecord& record) {
    const int last_row = history.lanes()[to_index(lane)].last_row, n_read = last_row + 1;
    std::vector<int> counts(to_index(history.layout(lane).n_kv_heads()), 0);
    for (std::size_t g = 0; g < counts.size(); ++g)
        for (int p = 0; p < n_read; ++p)
            counts[g] += history.stored(lane, static_cast<int>(g), p, last_row) ? 1 : 0;
    const std::int64_t sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    if (sum != record.use.stored_tokens)  // the record says the truth where the history was thinned out
        return fmt::format("{} of {} tokens over all KV heads", record.use.stored_tokens,
                           static_cast<std::int64_t>(counts.size()) * n_read);
    const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
    if (*least == *most) return fmt::format("{} of {} tokens a head", *most, n_read);
    return fmt::format("{} to {} of {} tokens a head, {:.1f} in the mean", *least, *most, n_read,
                       static_cast<double>(sum) / static_cast<double>(counts.size()));
}

/// Returns the counts of the newest selection of a lane with a formula of the user's.
std::optional<SelectionCounts> selection_of_formula(const RunHistory& history, int lane,
                                                    const LaneRecord& record) {
    if (!has_own_formula(parse_stored_lane_spec(record.info->spec))) return std::nullopt;
    return last_selection(history, lane, history.lanes()[to_index(lane)].last_row);
}

void print_lane_use(const RunHistory& history, int lane, const LaneRecord& record,
                    const LaneMetrics& metrics) {
    print_out("  stored {}, {:.2f} MB of {:.2f} MB allocated; evicted {}", stored_text(history, lane, record),
              1e-6 * static_cast<double>(record.use.stored_bytes),
              1e-6 * static_cast<double>(record.use.allocated_bytes), metrics.evictions);
    if (record.use.shadow_bytes > 0)
        print_out("; shadow {:.2f} MB", 1e-6 * static_cast<double>(record.use.shadow_bytes));
    print_out("{}\n", record.failure.empty() ? "" : "; failed: " + printable_text(record.failure));
    if (record.info->layout != nullptr || record.info->merged)
        print_out("  KV heads shared as {}, {} bytes a token in {}{}\n", record.info->kv,
                  record.info->token_bytes, kv_type_name(record.info->kv_dtype),
                  record.info->merged ? ", not uptrained" : "");
    if (const PolicyParams policy = parse_stored_lane_spec(record.info->spec).policy;
        policy.dialect == Dialect::released)
        print_out("  released: {}\n", dialect_help(policy.preset));
    if (const auto counts = selection_of_formula(history, lane, record)) {
        const std::string words = selection_words(*counts, history.layout(lane));
        if (!words.empty()) print_out("  {}\n", words);
    }
}

}  // namespace

bool has_own_formula(const LaneSpec& lane) {
    const PolicyParams usual = preset_params(lane.policy.preset);
    return lane.policy.choose != usual.choose || lane.policy.score != usual.score;
}

void print_decode_head(const LoadedModel& loaded, int n_prompt) {
    print_out("{}, {}\nprompt of {}\n", printable_text(loaded.model->path().string()), loaded.backend_text,
              counted(n_prompt, "token"));
    flush_output();
}

void print_run(const RunHistory& history, bool first_is_out) {
    const StepTrace& last = *history.steps().back();
    const std::vector<LaneMetrics> metrics = run_metrics(history);
    for (std::size_t i = 0; i < last.lanes.size(); ++i) {
        const LaneRecord& record = last.lanes[i];
        const int lane = history.lane_from_id(record.info->id).value();
        if (i > 0 || !first_is_out) {
            print_lane_name(lane, record);
            print_out("{}\n", printable_text(lane_text(history, lane), true));
        }
        print_lane_use(history, lane, record, metrics[to_index(lane)]);
    }
    print_out("\n{} decoded\n{}", counted(history.last_row() + 1 - history.n_prompt(), "step"),
              metrics_table(history, metrics));
    flush_output();
}

void add_lanes_json(nlohmann::json& json, const RunHistory& history) {
    const std::vector<LaneMetrics> metrics = run_metrics(history);
    for (const LaneRecord& record : history.steps().back()->lanes) {
        const int lane = history.lane_from_id(record.info->id).value();
        const LaneMetrics& m = metrics[to_index(lane)];
        const std::vector<int>& tokens = history.lanes()[to_index(lane)].tokens;
        nlohmann::json means;
        for (const LaneMean& mean : lane_means())
            if (!std::isnan(mean.of(m))) means[std::string(mean.name)] = mean.of(m);
        means["first_divergence"] = m.first_divergence ? nlohmann::json(*m.first_divergence) : nullptr;
        json["lanes"].push_back(
            {{"lane", lane},
             {"spec", record.info->effective},
             {"tokens", std::vector<int>(tokens.begin() + history.n_prompt(), tokens.end())},
             {"text", lane_text(history, lane)},
             {"metrics", means},
             {"evictions", m.evictions},
             {"steps", m.n_rows},
             {"steps_compared", m.n_compared},
             {"stored_tokens", record.use.stored_tokens},
             {"stored_bytes", record.use.stored_bytes},
             {"allocated_bytes", record.use.allocated_bytes}});
        if (!record.failure.empty()) json["lanes"].back()["failure"] = record.failure;
        if (const auto counts = selection_of_formula(history, lane, record))
            json["lanes"].back()["last_selection"] = {{"row", counts->row},
                                                      {"ranked", counts->n_ranked},
                                                      {"nan", counts->n_nan},
                                                      {"tied", counts->n_tied}};
    }
}

void end_with(std::span<const std::string> failures) {
    if (failures.empty()) return;
    for (const std::string& failure : failures.first(failures.size() - 1))
        print_note("keyhole: {}\n", printable_text(failure));
    fail(ErrorCode::unsupported, "{}", failures.back());
}

nlohmann::json decode_json(const LoadedModel& loaded, const RunHistory& history) {
    nlohmann::json json = json_head(*loaded.model, loaded.backend->name());
    json["context"] = loaded.model->config().n_ctx;
    json["prompt_tokens"] = history.n_prompt();
    json["seed"] = history.run().seed;
    json["follow"] = history.run().start.follow;
    add_lanes_json(json, history);
    return json;
}

LiveRun::LiveRun(int n_prompt, int n_steps, bool streams)
    : n_prompt_(n_prompt), n_steps_(n_steps), streams_(streams), progress_(std::in_place, "decode", 1) {
    progress_->set_part("prompt");
    progress_->update(0);
}

void LiveRun::read_prompt(double done) {
    check_termination();
    if (progress_) progress_->update(prompt_share() * done);
}

void LiveRun::add(const StepTrace& step) {
    check_termination();
    const LaneRecord& lane = step.lanes.front();
    if (step.row < n_prompt_) {
        ended_ = !lane.failure.empty();
        return begin(lane);
    }
    if (progress_) {
        const double done = static_cast<double>(step.row + 1 - n_prompt_) / n_steps_;
        progress_->update(prompt_share() + (1 - prompt_share()) * done);
    }
    // An ended lane's later records carry no token.
    if (streams_ && !ended_) text_.add(step.run->token_bytes[to_index(lane.token)]);
    ended_ = lane.ended || !lane.failure.empty();
}

void LiveRun::end() {
    progress_.reset();
    if (!is_open_) return;
    is_open_ = false;
    text_.end();
    print_out("\n");
    flush_output();
}

LiveRun::~LiveRun() {
    end();
}

double LiveRun::prompt_share() const {
    constexpr double kOfAStep = 0.1;  // a token of the prompt takes about this part of a step's time
    const double prompt = kOfAStep * n_prompt_;
    return prompt / (prompt + n_steps_);
}

void LiveRun::begin(const LaneRecord& lane) {
    if (progress_) progress_->set_part("");
    if (!streams_) return;
    // A terminal has one last line: the text gets it.
    if (::isatty(STDOUT_FILENO) != 0) progress_.reset();
    print_lane_name(0, lane);
    flush_output();
    is_open_ = true;
}

}  // namespace keyhole
