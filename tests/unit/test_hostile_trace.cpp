// Malicious traces, spools and their JSON. Each gives one error that names file and field, within little
// memory, so that all readers of an accepted run can rely on its content.
#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/base/npy.h"
#include "engine/trace/run_history.h"
#include "engine/trace/spool.h"
#include "engine/trace/trace_file.h"

#include "tests/reference/temp_folder.h"
#include "tests/unit/test_trace.h"
#include "tests/unit/trace_members.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keyhole::test_hostile_trace {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing_trace::change_member;
using testing_trace::limit_data;
using testing_trace::member_of;

class HostileTrace : public ::testing::Test {
  protected:
    static StepList steps() {
        testing_trace::Maker maker;
        maker.add_lane(0, 0);
        maker.add_lane(3, 4);
        StepList list;
        for (int i = 0; i < 4; ++i) list.push_back(maker.next().step);
        return list;
    }

    /// Returns the refusal message; empty when the trace was accepted.
    static std::string refusal(const fs::path& path) {
        try {
            RunHistory history;
            history.update(read_trace(path));
        } catch (const Error& error) {
            const std::string message = error.what();
            EXPECT_EQ(error.code(), ErrorCode::bad_file) << message;
            EXPECT_NE(message.find(path.string()), std::string::npos) << message;
            EXPECT_EQ(message.find('\n'), std::string::npos) << message;
            EXPECT_EQ(message.find("json.exception"), std::string::npos) << message;
            EXPECT_LT(message.size(), 500u) << message;
            return message;
        }
        return {};
    }
    void expect_refused(std::string_view part) const {
        const std::string message = refusal(path_);
        EXPECT_NE(message.find(part), std::string::npos) << "'" << message << "' lacks '" << part << "'";
    }

    void write_with_json(const std::function<void(Json&)>& change) const {
        write_trace(steps(), path_);
        Json json = Json::parse(member_of(path_, "run.json"));
        change(json);
        const std::string text = json.dump();
        change_member(path_, "run.json", &text);
    }
    void write_with_member(const char* name, const std::string& bytes) const {
        write_trace(steps(), path_);
        change_member(path_, name, &bytes);
    }

    /// Expects a refusal in a process that may use 300 MB more than it has.
    void expect_refused_in_little_memory(std::string_view part) const {
        const auto read = [&] {
            limit_data(std::size_t{300} << 20);
            try {
                read_trace(path_);
            } catch (const Error& error) {
                std::_Exit(std::string_view(error.what()).find(part) != std::string_view::npos ? 0 : 1);
            } catch (...) {
            }
            std::_Exit(2);
        };
        EXPECT_EXIT(read(), ::testing::ExitedWithCode(0), "");
    }

    const reference::TempFolder temp_{"hostile"};
    const fs::path folder_ = temp_.path(), path_ = folder_ / "run.keyhole";
};

TEST_F(HostileTrace, EveryFieldIsCheckedWhereItEnters) {
    struct Case {
        std::function<void(Json&)> change;
        const char* part;
    };
    const auto record = [](Json& json) -> Json& { return json["steps"][1]["lanes"][1]; };
    const std::vector<Case> cases = {
        // The vocabulary has 40 tokens.
        {[&](Json& j) { record(j)["token"] = 40; },
         "steps[1].lanes[1].token is 40, wanted a whole number from 0 to 39"},
        {[&](Json& j) { record(j)["token"] = -1; }, "steps[1].lanes[1].token is -1"},
        {[&](Json& j) { record(j)["predicted"] = 1 << 30; }, "steps[1].lanes[1].predicted is 1073741824"},
        {[&](Json& j) {
             record(j)["top"] = {{5000, -1.0}};
         },
         "steps[1].lanes[1].top[0][0] is 5000"},
        {[&](Json& j) {
             record(j)["top"] = {{-1, -1.0}};
         },
         "steps[1].lanes[1].top[0][0] is -1"},
        {[](Json& j) { j["run"]["prompt_tokens"][2] = 500'000'000; }, "run.prompt_tokens[2] is 500000000"},
        {[](Json& j) { j["run"]["prompt_tokens"] = Json::array(); }, "run.prompt_tokens"},
        {[](Json& j) {
             j["run"]["start"]["forced"] = {7, 40};
         },
         "run.start.forced[1] is 40"},
        {[](Json& j) {
             j["run"]["start"]["answer_end"] = {{"stop", {"2e"}}, {"max_tokens", 0}};
         },
         "run.start.answer_end.max_tokens is 0"},
        {[](Json& j) { j["run"]["start"]["right_answer"] = "4"; }, "run.start.right_answer"},
        {[](Json& j) { j["run"]["start"]["watch"] = 7; }, "run.start.watch"},
        {[](Json& j) { j["run"]["token_display"].erase(3); }, "run.token_display is a list of 39"},
        {[](Json& j) { j["run"]["token_display"] = Json::array(); }, "run.token_display"},
        {[](Json& j) { j["run"]["token_bytes"].push_back("20"); }, "run.token_bytes is a list of 41"},
        {[](Json& j) { j["run"]["token_bytes"] = Json::array(); }, "run.token_bytes"},
        {[](Json& j) { j["run"]["token_bytes"][4] = "2z"; }, "run.token_bytes[4]"},
        {[](Json& j) { j["run"]["config"]["n_vocab"] = 0; }, "run.config.n_vocab"},
        // Steps and lanes.
        {[](Json& j) { j["steps"] = Json::array(); }, "steps is empty"},
        {[](Json& j) { j["steps"][2]["lanes"] = Json::array(); }, "steps[2].lanes"},
        {[](Json& j) {
             for (Json& step : j["steps"]) step["lanes"] = Json::array();
         },
         "steps[0].lanes"},
        {[](Json& j) { j["steps"].erase(1); }, "steps[1].row is 7, wanted 6"},
        {[](Json& j) { j["steps"].erase(0); }, "begins"},
        {[](Json& j) { j["steps"][3]["row"] = 1 << 19; }, "steps[3].row"},
        {[](Json& j) { j["steps"][1]["lanes"][0]["lane"] = 2; }, "steps[1].lanes[0].lane is 2"},
        {[](Json& j) { j["steps"][1]["others"] = 0; }, "steps[1].others"},
        {[](Json& j) { j["steps"][1]["commands"] = "full"; }, "steps[1].commands is \"full\", wanted a list"},
        {[](Json& j) { j["lane_settings"] = Json::array(); }, "lane_settings"},
        {[](Json& j) {
             j["lane_settings"][1]["forked"] = {{"from", 0}, {"at", 9}};
         },
         "forked at row 9"},
        {[](Json& j) { j["lane_settings"][1]["spec"] = "h2o:budgett=3"; }, "lane_settings[1].spec"},
        {[](Json& j) { j["lane_settings"][1]["spec"] = std::string(20'000, 'x'); }, "lane_settings[1].spec"},
        {[](Json& j) {
             j["lane_settings"][1]["kv"] = {{"name", "mqa"}, {"merged", false}, {"token_bytes", 1e300}};
         },
         "lane_settings[1].kv.token_bytes"},
        // Kinds and sizes of numbers.
        {[&](Json& j) { record(j)["stored_tokens"] = std::int64_t{1} << 62; }, "stored_tokens"},
        {[&](Json& j) { record(j)["allocated_bytes"] = -1; }, "allocated_bytes"},
        {[&](Json& j) { record(j)["entropy"] = "much"; }, "entropy is \"much\""},
        {[&](Json& j) {
             record(j)["measures"] = {1, 2};
         },
         "steps[1].lanes[1].measures"},
        {[&](Json& j) { record(j)["agrees"] = 1; }, "agrees is 1, wanted true or false"},
        {[](Json& j) { j["run"]["config"]["n_heads"] = 1 << 20; }, "run.config.n_heads"},
        {[](Json& j) { j["run"]["config"]["n_kv_heads"] = 3; }, "run.config.n_kv_heads"},
        {[](Json& j) {
             j["run"]["config"]["window"] = {1, 2};
         },
         "run.config.window"},
        {[](Json& j) { j["run"]["seed"] = -1; }, "run.seed"},
        // The message names missing fields.
        {[](Json& j) { j.erase("format"); }, "format is missing"},
        {[](Json& j) { j["run"]["config"].erase("d_ff"); }, "run.config: d_ff is missing"},
        {[&](Json& j) { record(j).erase("tau"); }, "steps[1].lanes[1]: tau is missing"},
        {[](Json& j) { j = Json::array({1}); }, "an object"},
        {[](Json& j) { j["steps"][0] = nullptr; }, "steps[0] is null, wanted an object"},
    };
    write_with_json([](Json&) {});
    EXPECT_EQ(refusal(path_), "");
    for (const Case& one : cases) {
        write_with_json(one.change);
        expect_refused(one.part);
    }
}

TEST_F(HostileTrace, TextThatIsNoJsonIsNamedByItsLine) {
    write_with_member("run.json", "{\n\"format\": nope}");
    expect_refused("member run.json: it is no JSON at line 2");
    write_with_member("run.json", std::string(300, '[') + std::string(300, ']'));
    expect_refused("too deep");
    write_with_member("run.json", "{\"format\": 1e999}");
    expect_refused("run.json");
    write_with_member("run.json", "");
    expect_refused("run.json: it is no JSON at line 1");
    write_with_member("run.json", "{\"format\": \"\\u001b[31mred\"}");
    expect_refused("format is \"?[31mred\"");
}

TEST_F(HostileTrace, PipesDevicesAndFoldersAreRefused) {
    ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
    expect_refused("a pipe");
    fs::remove(path_);
    fs::create_symlink("/dev/zero", path_);
    expect_refused("a device");
    fs::remove(path_);
    fs::create_directories(path_);
    expect_refused("a folder");
    fs::remove(path_);
    fs::create_symlink(path_, path_);
    EXPECT_NE(refusal(path_), "");
    EXPECT_NE(refusal(folder_ / std::string(300, 'n')), "");
}

// 30 KB that expand to 30 MB of text and to over 1 GB of JSON values.
TEST_F(HostileTrace, ACompressedTextIsRefusedBeforeItIsRead) {
    std::string text = "{\"x\":[";
    for (int i = 0; i < 10'000'000; ++i) text += "[],";
    text += "0]}";
    write_with_member("run.json", text);
    ASSERT_LT(fs::file_size(path_), std::uintmax_t{1} << 20);
    expect_refused_in_little_memory("more than a run in a file of its size needs");
    // An even larger member is refused by the size in the zip directory alone.
    write_with_member("run.json", std::string(std::size_t{400} << 20, ' '));
    expect_refused_in_little_memory("its member run.json would take 400 MiB");
}

// 20,000 lane settings with 65,536 KV heads each took over 8 GB.
TEST_F(HostileTrace, SettingsOfLanesShareTheirKvHeads) {
    constexpr int kHeads = 1 << 16;
    const auto write = [&](const std::function<void(Json&, int)>& change) {
        write_with_json([&](Json& json) {
            Json& config = json["run"]["config"];
            config["n_layers"] = config["n_kv_layers"] = 1;
            config["n_heads"] = config["n_kv_heads"] = kHeads;
            Json& settings = json["lane_settings"];
            Json one = settings[0];
            one["kv"] = {
                {"name", "x"}, {"merged", false}, {"token_bytes", 1}, {"layers", 1}, {"heads", kHeads}};
            settings.clear();
            for (int i = 0; i < 20'000; ++i) {
                change(one, i);
                settings.push_back(one);
            }
        });
    };
    write([](Json&, int) {});
    expect_refused_in_little_memory(path_.string());
    // Every head has an override.
    write([](Json& one, int i) { one["spec"] = fmt::format("h2o:alpha@H0-9=0.5,alpha@H{}=0.25", 10 + i); });
    expect_refused_in_little_memory("the settings of its lanes");
}

// Small texts that request large tables.
TEST_F(HostileTrace, TablesAreInProportionToTheFile) {
    write_with_json([](Json& json) {
        Json& config = json["run"]["config"];
        config["n_layers"] = config["n_kv_layers"] = 1;
        config["n_heads"] = config["n_kv_heads"] = 1 << 16;
        Json& tokens = json["run"]["prompt_tokens"];
        tokens = std::vector<int>(4000, 1);
        int row = 3999;
        for (Json& step : json["steps"]) step["row"] = row++;
    });
    expect_refused_in_little_memory("the table of lane 0, 65536 KV heads by 4003 positions, would take");
}

// Rows without arrays take no bytes in the file.
TEST_F(HostileTrace, RowsWithoutArraysAreInProportionToTheFile) {
    const auto npy = [](NpyType type, const NpyShape& shape, const std::vector<std::int32_t>& data) {
        const auto bytes = encode_npy(type, shape, data.data());
        return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    };
    constexpr int kRows = 3000;
    write_with_json([](Json& json) {
        Json& config = json["run"]["config"];
        config["n_layers"] = 1 << 13;
        config["n_kv_layers"] = config["n_kv_heads"] = 1;
        config["n_heads"] = 8;
        Json step = json["steps"][0];
        step["lanes"].erase(1);
        step["lanes"][0]["rows"] = 0;
        json["steps"].clear();
        for (int i = 0; i < kRows; ++i) {
            step["row"] = 5 + i;
            json["steps"].push_back(step);
        }
    });
    std::vector<std::int32_t> rows;
    for (int i = 0; i < kRows; ++i) rows.push_back(5 + i);
    const std::string rows_npy = npy(NpyType::i32, {kRows}, rows), evictions = npy(NpyType::i32, {0, 4}, {}),
                      thresholds = npy(NpyType::f32, {kRows, 1}, rows);
    change_member(path_, "lane0/rows.npy", &rows_npy);
    change_member(path_, "lane0/evictions.npy", &evictions);
    change_member(path_, "lane0/thresholds.npy", &thresholds);
    for (const char* name : {"lane0/attention.npy", "lane0/scores.npy"}) change_member(path_, name, nullptr);
    expect_refused_in_little_memory("the rows of lane0/ would take");
}

TEST_F(HostileTrace, OtherCompressionsAreRefused) {
    write_trace(steps(), path_);
    const std::string text = member_of(path_, "run.json");
    int error = 0;
    zip_t* zip = zip_open(path_.c_str(), 0, &error);
    ASSERT_NE(zip, nullptr);
    const zip_int64_t index =
        zip_file_add(zip, "run.json", zip_source_buffer(zip, text.data(), text.size(), 0), ZIP_FL_OVERWRITE);
    if (zip_set_file_compression(zip, static_cast<zip_uint64_t>(index), ZIP_CM_BZIP2, 9) != 0) {
        zip_discard(zip);
        GTEST_SKIP() << "libzip writes no bzip2 here";
    }
    ASSERT_EQ(zip_close(zip), 0);
    expect_refused("compressed in another way");
}

TEST_F(HostileTrace, FramesOfASpoolAreCheckedAlike) {
    const fs::path spool = path_.string() + ".spool";
    const auto fault = [&](const std::function<void(StepTrace&)>& change) -> std::string {
        const StepList list = steps();
        StepTrace last = *list.back();
        change(last);
        fs::create_directories(spool);
        std::string bytes;
        for (std::size_t i = 0; i + 1 < list.size(); ++i) bytes += make_frame(*list[i], i == 0);
        write_text_file(spool / "frames.bin", bytes + make_frame(last, false));
        try {
            fs::remove(recover_spool(spool));
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::bad_file) << error.what();
            return error.what();
        }
        return "";
    };
    EXPECT_EQ(fault([](StepTrace&) {}), "");
    EXPECT_NE(fault([](StepTrace& s) { s.lanes[0].token = 40; }).find("steps[0].lanes[0].token is 40"),
              std::string::npos);
    EXPECT_NE(fault([](StepTrace& s) { s.lanes[1].predicted = -1; }).find("predicted is -1"),
              std::string::npos);
    EXPECT_NE(fault([](StepTrace& s) { s.lanes.clear(); }).find("lane_settings is a list of 0"),
              std::string::npos);
    EXPECT_NE(fault([](StepTrace& s) { s.row += 1; }).find("a row is missing"), std::string::npos);
}

}  // namespace
}  // namespace keyhole::test_hostile_trace
