// Compares products in integers with products in floats on a quantised model: logits of both with those of
// the reference model in double, and the tokens that every policy keeps. For tests/bench/results.
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "engine/policy/preset_table.h"
#include "engine/session/session.h"
#include "tests/bench/bench_options.h"
#include "tests/reference/reference_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace keyhole {
namespace {

struct Options {
    std::string model, prompt = "assets/prompts/long-story.txt";
    int rows = 500;     // compared with the reference model; 0: none
    int decoded = 100;  // rows decoded by every policy; 0: none
    int budget = 64;
    int threads = 2;
};

std::unique_ptr<Backend> backend_of(const std::shared_ptr<const Model>& model, const Options& options,
                                    Precision precision) {
    return make_cpu_backend(model, options.threads, precision);
}

/// A lane that keeps everything as floats and is fed given tokens.
class Fed {
  public:
    Fed(const std::shared_ptr<const Model>& model, const Options& options, Precision precision)
        : backend_(backend_of(model, options, precision)) {
        cache_ = backend_->make_cache(resolve(parse_lane_spec("full:kv_dtype=f32").policy, 1, options.rows));
    }
    const std::vector<float>& feed(int token, int row) {
        if (row == 0) {
            const LanePrefill lane{cache_.get(), {}, &out_};
            backend_->prefill({&token, 1}, {&lane, 1}, nullptr, {});
        } else {
            const LaneStep lane{cache_.get(), token, row, {}, &out_};
            backend_->step({&lane, 1});
        }
        return out_.next_logits;
    }

  private:
    std::unique_ptr<Backend> backend_;
    std::unique_ptr<KvCache> cache_;
    RowOutput out_;
};

struct Errors {
    double worst = 0, sum = 0;
    void add(const std::vector<float>& logits, const reference::Vector& exact) {
        double most = 0, scale = 0;
        for (std::size_t i = 0; i < exact.size(); ++i) {
            most = std::max(most, std::abs(logits[i] - exact[i]));
            scale = std::max(scale, std::abs(exact[i]));
        }
        worst = std::max(worst, most / scale);
        sum += most / scale;
    }
};

void compare_logits(const std::shared_ptr<const Model>& model, const Options& options) {
    std::vector<int> tokens = model->tokenizer().encode(read_text_file(options.prompt));
    tokens.resize(std::min(tokens.size(), to_index(options.rows)));
    Fed floats(model, options, Precision::floats), integers(model, options, Precision::weights);
    const reference::Weights weights = reference::weights_of(*model);
    reference::Sequence twin(weights);
    const reference::PositionSets none = reference::empty_sets(weights);
    reference::PositionSets seen = none;
    Errors of_floats, of_integers;
    int n_same = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const int row = static_cast<int>(i);
        const reference::Vector exact = twin.feed(tokens[i], seen).next_logits;
        for (auto& layer : seen)
            for (auto& head : layer) head.insert(row);
        const std::vector<float>&a = floats.feed(tokens[i], row), &b = integers.feed(tokens[i], row);
        of_floats.add(a, exact);
        of_integers.add(b, exact);
        n_same += std::max_element(a.begin(), a.end()) - a.begin() ==
                          std::max_element(b.begin(), b.end()) - b.begin()
                      ? 1
                      : 0;
    }
    const auto n = static_cast<double>(tokens.size());
    fmt::print(
        "next-token logits of {} rows against the reference in double, error over the row's largest:\n"
        "  floats    worst {:.2e}  mean {:.2e}\n  integers  worst {:.2e}  mean {:.2e}\n"
        "  the same most likely token in {} of {} rows\n",
        tokens.size(), of_floats.worst, of_floats.sum / n, of_integers.worst, of_integers.sum / n, n_same,
        tokens.size());
}

/// What each lane has evicted so far, and the tokens that it was fed.
class Evicted final : public RowSink {
  public:
    using Places = std::set<std::pair<int, int>>;  // KV head, position
    void row(const StepTrace& step, int lane, const RowOutput& out) override {
        tokens[lane].push_back(step.lanes.at(to_index(lane)).token);
        for (const Eviction& e : out.evictions) places[lane].insert({e.kv_head, e.position});
    }
    std::map<int, Places> places;
    std::map<int, std::vector<int>> tokens;
};

void compare_policies(const std::shared_ptr<const Model>& model, const Options& options) {
    RunSpec spec;
    spec.prompt = read_text_file(options.prompt);
    spec.prompt.resize(std::min(spec.prompt.size(), std::size_t{2400}));
    spec.n_generate = options.decoded;
    spec.ignore_eos = spec.follow = true;
    std::int64_t differ = 0, kept = 0;
    fmt::print(
        "tokens kept by one of floats and integers alone, after a prompt and each of {} rows that follow "
        "lane 0, budget {}:\n",
        options.decoded, options.budget);
    for (const PresetRow& preset : presets()) {
        spec.lanes = {parse_lane_spec("full")};
        try {
            spec.lanes.push_back(parse_lane_spec(fmt::format("{}:budget={}", preset.name, options.budget)));
            Evicted a, b;
            const auto floats = backend_of(model, options, Precision::floats);
            const auto integers = backend_of(model, options, Precision::weights);
            Session first(model, *floats, spec, &a), second(model, *integers, spec, &b);
            first.prefill();
            second.prefill();
            std::int64_t lane_differ = 0, lane_kept = 0;
            for (;;) {
                if (a.tokens[1] != b.tokens[1]) {
                    fmt::print("  {:<14} other tokens from row {} on\n", preset.name, first.next_row() - 1);
                    break;
                }
                const Evicted::Places &x = a.places[1], &y = b.places[1];
                std::int64_t alone = 0;
                for (const auto& place : x) alone += y.contains(place) ? 0 : 1;
                lane_differ += alone;
                lane_kept += std::int64_t{model->layout().n_kv_heads()} * first.next_row() -
                             static_cast<std::int64_t>(x.size());
                if (first.step() == nullptr || second.step() == nullptr) break;
            }
            differ += lane_differ;
            kept += lane_kept;
            fmt::print("  {:<14} {:>8} of {:>9}  {:.4f} %\n", preset.name, lane_differ, lane_kept,
                       100.0 * static_cast<double>(lane_differ) / static_cast<double>(lane_kept));
            std::fflush(stdout);
        } catch (const Error& error) {
            fmt::print("  {:<14} left out: {}\n", preset.name, error.what());
        }
    }
    fmt::print("  {:<14} {:>8} of {:>9}  {:.4f} %\n", "all", differ, kept,
               100.0 * static_cast<double>(differ) / static_cast<double>(kept));
}

}  // namespace
}  // namespace keyhole

int main(int n_args, char** args) {
    keyhole::Options options;
    if (!keyhole::read_options(n_args, args,
                               {{"--model", &options.model},
                                {"--prompt", &options.prompt},
                                {"--rows", &options.rows},
                                {"--decoded", &options.decoded},
                                {"--budget", &options.budget},
                                {"--threads", &options.threads}}))
        return 2;
    try {
        const auto model = keyhole::load_model(options.model);
        if (options.decoded > 0) keyhole::compare_policies(model, options);
        if (options.rows > 0) keyhole::compare_logits(model, options);
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}\n", error.what());
        return 1;
    }
}
