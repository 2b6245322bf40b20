// Checks the demo model's own text from outside: exports a run, reads the arrays back, and simulates every
// policy and dialect from the recorded logits and noise alone. The run must have kept the simulated sets.
#include "engine/base/index.h"
#include "tests/reference/policy_cases.h"

#include "engine/device/make_backend.h"
#include "engine/export/exporter.h"
#include "engine/session/session.h"
#include "tests/reference/source_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <regex>
#include <sstream>

namespace reference::test_recorded_run {
namespace {

namespace fs = std::filesystem;

constexpr int kGenerated = 20;

/// A .npy file of 4-byte values. Its reader shares no code with the writer.
template <class T>
struct Array {
    std::vector<std::int64_t> shape;
    std::vector<T> values;

    explicit Array(const fs::path& path) {
        std::ifstream file(path, std::ios::binary);
        char magic[10] = {};
        file.read(magic, 10);
        if (std::memcmp(magic, "\x93NUMPY\x01\x00", 8) != 0)
            throw std::runtime_error(path.string() + " is no .npy");
        std::string header(static_cast<unsigned char>(magic[8]) + 256u * static_cast<unsigned char>(magic[9]),
                           ' ');
        file.read(header.data(), static_cast<std::streamsize>(header.size()));
        EXPECT_NE(header.find(std::is_same_v<T, float> ? "'<f4'" : "'<i4'"), std::string::npos) << header;
        const std::size_t open = header.find('('), end = header.find(')');
        std::istringstream extents(
            std::regex_replace(header.substr(open + 1, end - open - 1), std::regex(","), " "));
        std::int64_t size = 1;
        for (std::int64_t n = 0; extents >> n; size *= n) shape.push_back(n);
        values.resize(keyhole::to_index(size));
        file.read(reinterpret_cast<char*>(values.data()), size * 4);
        EXPECT_EQ(file.gcount(), size * 4) << path;
    }
    template <class... Index>
    double at(Index... index) const {
        const std::int64_t indices[] = {index...};
        std::int64_t flat = 0;
        for (std::size_t i = 0; i < shape.size(); ++i) flat = flat * shape[i] + indices[i];
        return static_cast<double>(values[keyhole::to_index(flat)]);
    }
};

/// The exports about one lane.
struct Recorded {
    Observed text;
    NoiseOf noise;
    std::vector<Simulated> kv_heads;  ///< [KV head of the model]
};

/// evicted_at(KV head, position): the row whose processing evicted it; -1: never.
Recorded read_lane(const fs::path& run, int lane, int n_layers, int n_heads, int n_kv_heads,
                   const std::function<int(int, int)>& evicted_at) {
    const fs::path folder = run / fmt::format("lane{}", lane);
    const Array<float> logits(folder / "logits.npy");
    // A lane that draws no noise has no file.
    std::shared_ptr<const Array<float>> noise;
    if (fs::exists(folder / "noise.npy")) noise = std::make_shared<Array<float>>(folder / "noise.npy");
    std::ifstream file(run / "run.json");
    const nlohmann::json json = nlohmann::json::parse(file);
    const int n = static_cast<int>(json["prompt_tokens"].size()), n_rows = static_cast<int>(logits.shape[0]);
    EXPECT_EQ(json["first_row"], 0);
    EXPECT_EQ(logits.shape, (std::vector<std::int64_t>{n_rows, n_layers, n_heads, n_rows}));

    Recorded out;
    out.text = {n_layers, n_heads, n_kv_heads, n, n_rows, {logits.values.begin(), logits.values.end()}};
    out.noise = [noise](int layer, int head, int row, int p) {
        const double zeta = noise ? noise->at(row, layer, head, p) : 0;
        return std::isnan(zeta) ? 0 : zeta;
    };
    const int group = n_heads / n_kv_heads;
    for (int l = 0; l < n_layers; ++l)
        for (int g = 0; g < n_kv_heads; ++g) {
            Simulated& rows = out.kv_heads.emplace_back();
            const int kv_head = l * n_kv_heads + g;
            for (int row = 0; row < n_rows; ++row) {
                SimulatedRow& r = rows.emplace_back();
                for (int p = 0; p <= row; ++p) {
                    const int gone = evicted_at(kv_head, p);
                    if (gone < 0 || gone > row) r.kept.insert(p);
                    if (!std::isnan(out.text.logit(row, l, g * group, p))) r.visible.insert(p);
                }
            }
        }
    return out;
}

class RecordedRun : public ::testing::Test {
  protected:
    void SetUp() override {
        folder_ = fs::temp_directory_path() / fmt::format("keyhole-recorded-{}", ::getpid());
        model_ = keyhole::load_model(reference::source_folder().string() + "/assets/models/keyhole-base");
        std::ifstream file(reference::source_folder().string() + "/assets/prompts/story.txt");
        std::string all((std::istreambuf_iterator<char>(file)), {});
        prompt_ = all.substr(0, 130);
        n_prompt_ = static_cast<int>(model_->tokenizer().encode(prompt_).size());
    }
    void TearDown() override { fs::remove_all(folder_); }

    void decode(std::span<const PolicyCase> cases, const std::string& files) {
        fs::remove_all(folder_);
        std::string notice;
        const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 2, 0}, &notice);
        keyhole::ExportOptions options;
        options.folder = folder_;
        options.all_rows = true;
        keyhole::parse_export_list(files, options);
        keyhole::RunSpec spec;
        spec.prompt = prompt_;
        for (const PolicyCase& c : cases) spec.lanes.push_back(keyhole::parse_lane_spec(c.spec));
        spec.ignore_eos = true;
        spec.n_generate = kGenerated;
        spec.requested = options.requested();
        keyhole::ExportSink sink(options, {model_->layout(), n_prompt_, static_cast<int>(cases.size()),
                                           n_prompt_ + kGenerated - 1});
        keyhole::StepList steps;
        keyhole::replay(model_, *backend, spec, n_prompt_ + kGenerated - 1, &sink,
                        [&](std::shared_ptr<const keyhole::StepTrace> step) { steps.push_back(step); });
        history_ = {};
        history_.update(steps);
        sink.finish(history_);
    }

    /// Reads the sets from evicted_at.npy (by_file, which also writes pictures and takes longer), else from
    /// the run's records.
    void check(std::span<const PolicyCase> cases, bool by_file) {
        decode(cases, by_file ? "run,logits,noise,mask" : "run,logits,noise");
        const keyhole::ModelConfig& config = model_->config();
        for (std::size_t i = 0; i < cases.size(); ++i) {
            const PolicyCase& c = cases[i];
            const int index = static_cast<int>(i);
            std::optional<Array<std::int32_t>> table;
            if (by_file) table.emplace(folder_ / fmt::format("lane{}", i) / "evicted_at.npy");
            const Recorded lane = read_lane(
                folder_, index, config.n_layers, config.n_heads, config.n_kv_heads, [&](int g, int p) {
                    return table ? static_cast<int>(table->at(g, p)) : history_.evicted_at(index, g, p);
                });
            for (const Readers& unit : selected_together(lane.text, c.unit)) {
                const Simulated expected = c.simulate(lane.text, unit, lane.noise);
                for (const auto& [layer, g] : unit.kv_heads) {
                    const Difference difference = compare_rows(
                        lane.kv_heads[keyhole::to_index(layer * config.n_kv_heads + g)], expected, 0, 1e-4);
                    n_choices_ += difference.n_choices;
                    n_near_ties_ += difference.near_tie;
                    least_margin_ = std::min(least_margin_, difference.least_margin);
                    if (difference.near_tie) continue;
                    ASSERT_EQ(difference.what, "") << c.spec << ", layer " << layer << ", KV head " << g;
                }
            }
        }
    }
    void check_all(const std::vector<PolicyCase>& cases, bool by_file) {
        constexpr std::size_t kLanes = 24;  // per pass: one megabyte per array
        const std::span<const PolicyCase> all(cases);
        RecordProperty("lanes", static_cast<int>(cases.size()));
        for (std::size_t first = 0; first < all.size() && !HasFatalFailure(); first += kLanes)
            check(all.subspan(first, std::min(kLanes, all.size() - first)), by_file);
        RecordProperty("choices", n_choices_);
        RecordProperty("near_ties", n_near_ties_);
        RecordProperty("least_margin", fmt::format("{:.1e}", least_margin_));
        EXPECT_GT(n_choices_, 0);
        EXPECT_LE(n_near_ties_, 1 + n_choices_ / 10000);
    }

    fs::path folder_;
    std::shared_ptr<const keyhole::Model> model_;
    std::string prompt_;
    keyhole::RunHistory history_;
    int n_prompt_ = 0;
    int n_choices_ = 0, n_near_ties_ = 0;
    double least_margin_ = 1;
};

TEST_F(RecordedRun, KeepsWhatFollowsFromItsLogitsAndNoise) {
    check_all(policy_cases(12, kGenerated), false);
}

TEST_F(RecordedRun, SharesOfThePromptAreTruncatedAsEachCodeDoes) {
    check_all(percent_cases(n_prompt_, kGenerated), false);
}

// Checks as an outsider can: only from the files of `decode --export run,logits,noise,mask --rows all`.
TEST_F(RecordedRun, FilesAloneSayTheSame) {
    std::vector<PolicyCase> cases = policy_cases(10, kGenerated);
    std::erase_if(cases, [](const PolicyCase& c) {
        return c.spec != "keyformer:budget=10,noise=gaussian,draw=row" &&
               c.spec != "a2sf:budget=10,alpha=0.5" &&
               c.spec.find("h2o:budget=10,recent=2,pool=mean,dialect=released") != 0;
    });
    ASSERT_EQ(cases.size(), 3u);
    check_all(cases, true);
}

}  // namespace
}  // namespace reference::test_recorded_run
