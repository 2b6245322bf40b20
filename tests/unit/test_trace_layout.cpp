// The manual's table of a trace's members, against traces: every member stands there with its type and its
// dimensions, and flat rows are unpacked as the manual says.
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "engine/base/npy.h"
#include "engine/trace/trace_file.h"
#include "tests/reference/session_run.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/temp_folder.h"
#include "tests/reference/tiny_model.h"
#include "tests/unit/trace_members.h"

#include <gtest/gtest.h>
#include <zip.h>

#include <algorithm>
#include <map>
#include <regex>
#include <sstream>

namespace keyhole::test_trace_layout {
namespace {

/// Type and number of dimensions of each member, such as "float16 3", by its name with N for the lane.
using Members = std::map<std::string, std::string>;

Members members_of_manual() {
    Members members;
    std::istringstream page(read_text_file(reference::source_folder() / "assets/manual/exports.md"));
    const std::regex row(R"(\| `([^`]+)` \| (\w+) \| (\[[^\]]*\])?.*)");
    bool in_table = false;
    for (std::string line; std::getline(page, line);) {
        if (line.starts_with("| member |")) in_table = true;
        if (line.empty()) in_table = false;
        std::smatch found;
        if (!in_table || !std::regex_match(line, found, row)) continue;
        const std::string shape = found[3];
        members[found[1]] = shape.empty() ? found[2].str()
                                          : fmt::format("{} {}", found[2].str(),
                                                        1 + std::count(shape.begin(), shape.end(), ','));
    }
    return members;
}

Members members_of_trace(const std::filesystem::path& path) {
    const std::map<NpyType, std::string> names = {{NpyType::f32, "float32"},
                                                  {NpyType::f16, "float16"},
                                                  {NpyType::i32, "int32"},
                                                  {NpyType::u8, "uint8"}};
    Members members;
    int error = 0;
    zip_t* zip = zip_open(path.c_str(), ZIP_RDONLY, &error);
    for (zip_int64_t i = 0; i < zip_get_num_entries(zip, 0); ++i) {
        const std::string name = zip_get_name(zip, static_cast<zip_uint64_t>(i), 0);
        std::string kind = "text";
        if (name.ends_with(".npy")) {
            const std::string bytes = testing_trace::member_of(path, name.c_str());
            const NpyHeader header = parse_npy_header(std::as_bytes(std::span(bytes)), name);
            kind = fmt::format("{} {}", names.at(header.type), header.shape.size());
        }
        members[std::regex_replace(name, std::regex("^lane[0-9]+/"), "laneN/")] = kind;
    }
    zip_discard(zip);
    return members;
}

class TraceLayout : public ::testing::Test {
  protected:
    void SetUp() override {
        RunSpec spec =
            reference::run_spec("the cat sat on the mat",
                                {"full", "h2o:budget=6,shadow=on", "dilated:budget=5", "h2o:kv=mqa"}, 6);
        spec.requested.attention = spec.requested.scores = true;
        run_ = reference::run_session(load_model(model_.folder()), spec, {{2, "pin 0 3"}});
        write_trace({run_.steps.begin(), run_.steps.end()}, path_, {}, R"({"right": "", "lanes": []})");
    }
    NpyArray array(const std::string& name) const {
        const std::string bytes = testing_trace::member_of(path_, name.c_str());
        return decode_npy(std::as_bytes(std::span(bytes)), name);
    }

    reference::TinyModel model_{reference::TinyShape{}};
    reference::TempFolder folder_{"trace-layout"};
    const std::filesystem::path path_ = folder_.path() / "run.keyhole";
    reference::SessionRun run_;
};

TEST_F(TraceLayout, TheManualListsEveryMember) {
    const Members manual = members_of_manual();
    ASSERT_GE(manual.size(), 10u);
    Members found = members_of_trace(path_);
    // A lane with KV heads of its own has prompt rows of its own: the manual says so in a sentence.
    for (const char* name : {"prompt_attention.npy", "prompt_reduction.npy"}) {
        EXPECT_EQ(found.at(std::string("laneN/") + name), manual.at(name));
        found.erase(std::string("laneN/") + name);
    }
    EXPECT_EQ(found, manual);
}

/// The Python of the manual, in C++: it fills the array from the flat values, and all of them are used.
TEST_F(TraceLayout, FlatRowsAreUnpackedAsTheManualSays) {
    const RunHistory history = reference::history_of(run_);
    for (int lane = 0; lane < 3; ++lane) {  // their layers have KV heads of their own
        const std::string prefix = fmt::format("lane{}/", lane);
        const NpyArray gone = array(prefix + "evicted_at.npy"), flat = array(prefix + "attention.npy");
        const auto rows = array(prefix + "rows.npy").as<std::int32_t>();
        const int heads = model_.shape().n_heads, all = heads * model_.shape().n_layers,
                  group = all / static_cast<int>(gone.shape[0]);
        std::int64_t at = 0;
        double sum = 0;
        for (const std::int32_t row : rows)
            for (int h = 0; h < all; ++h) {
                std::vector<float> expected(to_index(row) + 1);
                ASSERT_TRUE(history.attention_row(lane, row, h / heads, h % heads, expected));
                for (int p = 0; p <= row; ++p) {
                    const float evicted = gone.value((h / group) * gone.shape[1] + p);
                    const bool held = evicted < 0 || evicted >= static_cast<float>(row);
                    const float value = held ? flat.value(at++) : 0;
                    ASSERT_EQ(value, expected[to_index(p)]) << lane << " row " << row << " head " << h;
                    sum += value;
                }
            }
        EXPECT_EQ(at, npy_size(flat.shape));
        EXPECT_NEAR(sum, static_cast<double>(rows.size()) * all, 0.01 * sum);
    }
}

}  // namespace
}  // namespace keyhole::test_trace_layout
