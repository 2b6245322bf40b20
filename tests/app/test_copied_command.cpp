// The command that the window copies makes the run of the window again, for every preset and option: its
// files hold the evictions and the tokens of the window's own record.
#include "engine/base/npy.h"
#include "engine/policy/lane_spec.h"
#include "tests/app/live_run.h"
#include "tests/reference/temp_folder.h"

#include <sys/wait.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

namespace keyhole::test_copied_command {
namespace {

namespace fs = std::filesystem;

class CopiedCommand : public testing::LiveRun {
  protected:
    std::string path(const std::string& name) const { return (temp_.path() / name).string(); }
    std::string read(const fs::path& file) const {
        std::ifstream in(file, std::ios::binary);
        return {std::istreambuf_iterator<char>(in), {}};
    }
    /// Starts the lanes anew and decodes.
    void begin(const std::vector<std::string>& lanes, int n_tokens,
               const std::vector<std::string>& then = {}) {
        app.run.setup.lanes.clear();
        for (const std::string& lane : lanes) app.run.setup.lanes.push_back(parse_lane_spec(lane));
        app.run.lane_editor.reset(app.run.setup.lanes, false);
        app.start();
        settle();
        run_action(app, fmt::format("step {}", n_tokens - n_tokens / 2));
        settle();
        for (const std::string& action : then) {
            run_action(app, action);
            settle();
        }
        run_action(app, fmt::format("step {}", n_tokens / 2));
        settle();
    }
    /// Runs what `file.copy run` copies, in a shell, and compares its files with the window's record.
    void expect_same(const std::string& list) {
        fs::remove_all(path("out"));
        run_action(app, "export.folder " + path("out"));
        run_action(app, "export.list " + list);
        run_action(app, "file.copy run");
        std::string command = app.requests.clipboard_out;
        ASSERT_TRUE(command.starts_with("keyhole decode ")) << command;
        command = reference::built("keyhole") + command.substr(std::string("keyhole").size());
        std::ofstream(path("command.sh")) << command << "\n";
        ASSERT_EQ(std::system(("bash '" + path("command.sh") + "' > '" + path("said") + "' 2>&1").c_str()), 0)
            << command << "\n"
            << read(path("said"));
        const RunHistory& history = app.run.history;
        const auto json = nlohmann::json::parse(read(path("out/run.json")));
        ASSERT_EQ(json["lanes"].size(), history.lanes().size()) << command;
        for (int lane = 0; lane < static_cast<int>(history.lanes().size()); ++lane) {
            const std::string spec = json["lanes"][to_index(lane)]["spec"];
            const std::vector<int>& tokens = history.lanes()[to_index(lane)].tokens;
            EXPECT_EQ(json["lanes"][to_index(lane)]["tokens"].get<std::vector<int>>(),
                      std::vector<int>(tokens.begin() + history.n_prompt(), tokens.end()))
                << spec;
            const NpyArray table = read_npy(path(fmt::format("out/lane{}/evicted_at.npy", lane)));
            const int n_kv_heads = history.layout(lane).n_kv_heads(), n = history.n_positions();
            ASSERT_EQ(table.shape, (NpyShape{n_kv_heads, n})) << spec;
            int n_other = 0;
            for (int g = 0; g < n_kv_heads; ++g)
                for (int p = 0; p < n; ++p)
                    n_other += table.value(std::int64_t{g} * n + p) !=
                               static_cast<float>(history.evicted_at(lane, g, p));
            EXPECT_EQ(n_other, 0) << spec << " of " << n_kv_heads * n << "\n" << command;
        }
    }
    reference::TempFolder temp_{"copied-command"};
};

/// All presets, with the paper's and the released rules, then each option by itself.
TEST_F(CopiedCommand, RepeatsEveryPreset) {
    std::vector<std::string> lanes;
    for (const std::string name :
         {"full", "window", "sink", "dilated", "key", "h2o", "tova", "keyformer", "a2sf"}) {
        lanes.push_back(name == "full" ? name : name + ":budget=14");
        if (name != "full") lanes.push_back(name + ":budget=40%,seed=5");
    }
    for (const char* released : {"h2o:budget=14,dialect=released", "tova:budget=14,dialect=released",
                                 "keyformer:budget=14,dialect=released", "a2sf:budget=14,dialect=released"})
        lanes.emplace_back(released);
    begin(lanes, 24);
    expect_same("run,mask-table");
}

TEST_F(CopiedCommand, RepeatsEveryOption) {
    begin(
        {"full", "keyformer:budget=14", "keyformer:budget=14,tau=1..4", "keyformer:budget=14,tau=1..4@cosine",
         "keyformer:budget=14,tau=3", "keyformer:budget=14,tau=1..2,tau_delta=0.1",
         "keyformer:budget=14,horizon=12", "keyformer:budget=14,noise=gaussian,draw=row",
         "keyformer:budget=14,gain=2,recent=25%", "h2o:budget=14,tau=1..3", "h2o:budget=14,tau@L0-1=1..9",
         "h2o:budget=14,damping=0.9,every=3", "h2o:budget=14,scope=layer,pool=max,sinks=2",
         "h2o:budget=14,budget@L2=6,alpha@L0.H1=0.5", "h2o:budget=14,prefill=stepwise,score_dtype=bf16",
         "h2o:budget=14,positions=cache,kv_dtype=q8", "a2sf:budget=14,alpha=0.3,kv=gqa:1"},
        20);
    expect_same("run,mask-table");
}

/// What is changed in mid-run, the choice of tokens, and lanes that come and go.
TEST_F(CopiedCommand, RepeatsWhatWasChangedOnTheWay) {
    begin({"full", "keyformer:budget=14", "h2o:budget=12"}, 16,
          {"lane 2 keyformer:budget=10", "add keyformer:budget=9,tau=1..5", "lane.duplicate",
           "sampling temperature=0.8,top_k=20,top_p=0.9", "follow on"});
    expect_same("run,mask-table");
    app.run.setup.seed = 77;
    app.run.setup.prompt = "It's \"so\":\n1 < 2 & $HOME \\n `x`";
    begin({"full", "keyformer"}, 10);
    expect_same("run,mask-table");
}

/// The files of the window's own export and those of the command are the same, byte by byte.
TEST_F(CopiedCommand, MakesTheFilesOfTheWindowsExport) {
    app.run.setup.guide = {"4821", "", {{"gate"}}, {}};
    begin({"full", "keyformer:budget=14", "h2o:budget=12"}, 12);
    for (const char* list :
         {"run,atlas,answers,curve:kl,curve:jaccard", "run,next,scores,csv,view,difference:0-2"}) {
        run_action(app, "export.rows all");
        expect_same(std::string(list) + ",mask-table");
        fs::rename(path("out"), path("command"));
        run_action(app, "export.start");
        ASSERT_TRUE(wakes.wait_until([&] { return !app.jobs.export_job.running(); }));
        app.refresh();
        ASSERT_FALSE(app.jobs.export_job.failed()) << app.jobs.export_job.result();
        int n_files = 0;
        for (const auto& entry : fs::recursive_directory_iterator(path("command"))) {
            if (entry.is_directory()) continue;
            const fs::path name = entry.path().lexically_relative(path("command"));
            ASSERT_TRUE(fs::exists(path("out") / name)) << name;
            if (name != "run.json") {  // it holds times
                EXPECT_TRUE(read(entry.path()) == read(path("out") / name)) << name;
            }
            ++n_files;
        }
        EXPECT_EQ(n_files, std::count_if(fs::recursive_directory_iterator(path("out")), {},
                                         [](const auto& entry) { return !entry.is_directory(); }));
        fs::remove_all(path("command"));
    }
}

}  // namespace
}  // namespace keyhole::test_copied_command
