// A run as one page: the numbers that it holds, what a hostile token becomes in it, and how large it gets.
#include "app/view/number_text.h"
#include "app/view/page.h"
#include "app/view/page_numbers.h"
#include "engine/analysis/run_rows.h"
#include "engine/base/half.h"
#include "engine/base/index.h"
#include "tests/app/program_run.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/synthetic_run.h"

#include <gtest/gtest.h>
#include <zlib.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace keyhole::test_page {
namespace {

using Json = nlohmann::json;

/// Returns what stands between two texts; fails if they do not.
std::string between(const std::string& text, const std::string& first, const std::string& last) {
    const std::size_t begin = text.find(first);
    EXPECT_NE(begin, std::string::npos) << first;
    if (begin == std::string::npos) return "";
    const std::size_t end = text.find(last, begin + first.size());
    EXPECT_NE(end, std::string::npos) << last;
    return text.substr(begin + first.size(), end - begin - first.size());
}

std::vector<unsigned char> bytes_of_base64(const std::string& text) {
    static const std::string kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::vector<unsigned char> bytes;
    std::uint32_t bits = 0;
    int n = 0;
    for (const char c : text) {
        const std::size_t value = kLetters.find(c);
        if (value == std::string::npos) continue;
        bits = bits << 6 | static_cast<std::uint32_t>(value);
        if ((n += 6) < 8) continue;
        n -= 8;
        bytes.push_back(static_cast<unsigned char>(bits >> n));
    }
    return bytes;
}

std::vector<unsigned char> inflated(const std::vector<unsigned char>& packed) {
    std::vector<unsigned char> bytes(std::size_t{64} << 20);
    uLongf size = bytes.size();
    EXPECT_EQ(uncompress(bytes.data(), &size, packed.data(), packed.size()), Z_OK);
    bytes.resize(size);
    return bytes;
}

/// A page as a browser reads it.
struct ReadPage {
    std::string html;
    Json run;
    std::vector<unsigned char> bytes;

    explicit ReadPage(std::string page)
        : html(std::move(page)),
          run(Json::parse(between(html, "<script type=\"application/json\" id=\"run\">", "</script>"))),
          bytes(inflated(bytes_of_base64(between(html, "id=\"numbers\">", "</script>")))) {}

    template <class T>
    std::vector<T> section(const std::string& name) const {
        const Json& about = run.at("sections").at(name);
        const auto at = about.at("at").get<std::size_t>(), count = about.at("count").get<std::size_t>();
        std::vector<T> values(count);
        for (std::size_t i = 0; i < count; ++i) {
            unsigned char value[sizeof(T)];
            for (std::size_t plane = 0; plane < sizeof(T); ++plane)
                value[plane] = bytes.at(at + plane * count + i);
            std::memcpy(&values[i], value, sizeof(T));
        }
        return values;
    }
    /// Returns the rows of a section by (row, index), as texts.
    template <class T>
    std::map<std::pair<int, int>, std::vector<std::string>> rows(const std::string& name) const {
        const std::vector<int> units = section<int>(name + ".units");
        const std::vector<T> values = section<T>(name);
        std::map<std::pair<int, int>, std::vector<std::string>> out;
        std::size_t at = 0;
        for (std::size_t i = 0; i < units.size(); i += 2)
            for (int p = 0; p <= units[i]; ++p) {
                const T value = values.at(at++);
                float number = 0;
                if constexpr (sizeof(T) == 2)
                    number = float_from_fp16(value);
                else
                    number = value;
                out[{units[i], units[i + 1]}].push_back(number_text(double(number)));
            }
        EXPECT_EQ(at, values.size());
        return out;
    }
};

class Page : public ::testing::Test {
  protected:
    void open(const testing::SyntheticSpec& spec) {
        steps_ = testing::synthetic_run(spec);
        take();
    }
    void take() {
        history_.update(steps_);
        source_ = {};
        source_.history = &history_;
        source_.focus = shown_lane(history_, 0);
        source_.answers = answers_in_record(history_);
        mark_answers(source_.answers, "");
    }
    /// Gives every record another RunInfo.
    void change_run(const std::function<void(RunInfo&)>& change) {
        auto run = std::make_shared<RunInfo>(*steps_.front()->run);
        change(*run);
        for (auto& step : steps_) {
            auto copy = std::make_shared<StepTrace>(*step);
            copy->run = run;
            step = copy;
        }
        take();
    }
    StepList steps_;
    RunHistory history_;
    PictureSource source_;
};

TEST_F(Page, HasEveryNumberToTheDigitThatIsShown) {
    open({.n_kv_heads = 2, .budgets = {0, 16, 24}});
    const ReadPage page(run_page(source_));
    std::size_t n = 0;
    for (int lane = 0; lane < 3; ++lane) {
        const std::string name = fmt::format("lane{}.", lane);
        std::vector<float> values;
        const auto attention = page.rows<std::uint16_t>(name + "attention");
        EXPECT_EQ(attention.size(), 31u * 16u);
        for (const auto& [place, texts] : attention) {
            const auto [row, head] = place;
            values.assign(to_index(row) + 1, 0);
            ASSERT_TRUE(attention_values(history_, lane, row, head / 4, head % 4, values));
            for (std::size_t p = 0; p < values.size(); ++p, ++n)
                ASSERT_EQ(texts[p], number_text(double(values[p])))
                    << lane << ' ' << row << ' ' << head << ' ' << p;
        }
        const std::vector<int> evicted = page.section<int>(name + "evicted_at");
        ASSERT_EQ(evicted.size(), 8u * 70u);
        for (int g = 0; g < 8; ++g)
            for (int p = 0; p < 70; ++p)
                ASSERT_EQ(evicted[to_index(g * 70 + p)], history_.evicted_at(lane, g, p)) << g << ' ' << p;
        const auto scores = page.rows<float>(name + "scores");
        EXPECT_EQ(scores.size(), lane == 0 ? 0u : 31u * 8u);
        for (const auto& [place, texts] : scores) {
            const auto [row, g] = place;
            values.assign(to_index(row) + 1, 0);
            ASSERT_TRUE(score_values(history_, lane, row, g, values));
            for (std::size_t p = 0; p < values.size(); ++p)
                ASSERT_EQ(texts[p], number_text(double(values[p])))
                    << lane << ' ' << row << ' ' << g << ' ' << p;
        }
        if (lane == 0) continue;
        const std::vector<float> thresholds = page.section<float>(name + "thresholds");
        for (int row = 39; row < 70; ++row)
            for (int g = 0; g < 8; ++g)
                ASSERT_EQ(number_text(double(thresholds.at(to_index((row - 39) * 8 + g)))),
                          number_text(double(threshold_at(history_, lane, row, g))));
    }
    EXPECT_EQ(n, 3u * 16u * 31u * 55u);  // rows of 40 to 70 positions
    const LaneRecord* record = history_.lane_record(60, 1);
    const Json& steps = page.run["lanes"][1]["steps"];
    EXPECT_EQ(steps["stored_tokens"][60 - 39], record->use.stored_tokens);
    EXPECT_EQ(steps["entropy"][60 - 39].get<float>(), record->entropy);
}

/// A lane that was changed has the settings of each part of its steps, not the newest alone.
TEST_F(Page, SaysWhichSettingsALaneHadFromWhichStep) {
    open({.budgets = {0, 16}});
    const int first = history_.steps().front()->row, from = history_.last_row() - 2;
    auto info = std::make_shared<LaneInfo>(*steps_.back()->lanes[1].info);
    info->spec = "tova:budget=8";
    info->effective = "tova:budget=8,recent=0";
    auto renamed = std::make_shared<LaneInfo>(*info);
    renamed->spec = "mine=tova:budget=8";  // a name is no other setting
    for (auto& step : steps_)
        if (step->row >= from) {
            auto copy = std::make_shared<StepTrace>(*step);
            copy->lanes[1].info = step->row > from ? renamed : info;
            step = copy;
        }
    take();
    const Json lanes = ReadPage(run_page(source_)).run["lanes"];
    EXPECT_EQ(lanes[0]["settings"].size(), 1u);
    const Json changed = lanes[1]["settings"];
    ASSERT_EQ(changed.size(), 2u) << changed;
    EXPECT_EQ(changed[0][0], first);
    EXPECT_EQ(changed[0][1], "H2O");
    EXPECT_TRUE(changed[0][2].get<std::string>().starts_with("h2o:budget=16")) << changed;
    EXPECT_EQ(changed[1], (Json{from, "TOVA", "tova:budget=8,recent=0"}));
}

TEST_F(Page, ShortNumbersAreWrittenAsLongOnes) {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        const auto half = static_cast<std::uint16_t>(bits);
        const double value = double(float_from_fp16(half)),
                     made = double(float_from_fp16(shortest_half(half)));
        if (std::isnan(value))
            ASSERT_TRUE(std::isnan(made));
        else
            ASSERT_EQ(number_text(made), number_text(value)) << bits;
    }
    EXPECT_EQ(shortest_half(fp16_from_float(3.14e-5f)) & 7, 0);  // two digits need few bits
    std::minstd_rand random(3);
    int n_short = 0;
    for (int i = 0; i < 20'000; ++i) {
        const float value = std::ldexp(1.0f + static_cast<float>(random() % 99'991) / 99'991,
                                       static_cast<int>(random() % 40) - 30);
        const float made = shortest_float(value);
        ASSERT_EQ(number_text(double(made)), number_text(double(value))) << value;
        std::uint32_t bits = 0;
        std::memcpy(&bits, &made, sizeof bits);
        n_short += (bits & 0xff) == 0 ? 1 : 0;
    }
    EXPECT_GT(n_short, 10'000);
}

TEST_F(Page, HostileTokensStayText) {
    open({.budgets = {0, 16}});
    const std::vector<std::string> hostile = {"</script><script>alert(1)</script>",
                                              "<!--",
                                              "\u202Eturned",
                                              "\u2028",
                                              "bad\xff\xc3",
                                              "{{numbers}}",
                                              "&amp;",
                                              "\\u003c",
                                              "\x1b[31m",
                                              "\"'`${x}"};
    change_run([&](RunInfo& run) {
        for (std::size_t i = 0; i < hostile.size(); ++i)
            run.token_display[i] = run.token_bytes[i] = hostile[i];
        run.prompt = "Say </title><script>alert(2)</script> \u202E {{run}}";
        run.model_path = "models/</style><img src=x>";
    });
    const ReadPage page(run_page(source_));
    EXPECT_EQ(page.run["strings"][0].get<std::string>().find('\xff'), std::string::npos);
    std::map<std::string, bool> texts;
    for (const Json& text : page.run["strings"]) texts[text.get<std::string>()] = true;
    for (const char* text :
         {"</script><script>alert(1)</script>", "<!--", "<U+202E>turned", "<U+2028>", "bad<0xFF><0xC3>",
          "{{numbers}}", "&amp;", "\\u003c", "<U+001B>[31m", "\"'`${x}"})
        EXPECT_TRUE(texts.contains(text)) << text;
    for (const char* never : {"alert(1)</script", "<script>alert", "\u202E", "\u2028", "<img", "</style><"})
        EXPECT_EQ(page.html.find(never), std::string::npos) << never;
    const auto count = [&](const std::string& what) {
        std::size_t n = 0;
        for (std::size_t at = 0; (at = page.html.find(what, at)) != std::string::npos; ++at) ++n;
        return n;
    };
    EXPECT_EQ(count("<script"), 3u);
    EXPECT_EQ(count("</script"), 3u);
    EXPECT_EQ(count("id=\"numbers\""), 1u);
    EXPECT_NE(page.html.find("&lt;U+202E&gt; {{run}}"), std::string::npos);
    EXPECT_EQ(page_text("a\u0660 \u2066b\r"), "a\u0660 <U+2066>b<U+000D>");
}

TEST_F(Page, IsThinnedToItsSizeAndSaysSo) {
    EXPECT_EQ(most_page_bytes(10), 1'000'000u);
    EXPECT_EQ(most_page_bytes(400), 1'000'000u);
    EXPECT_EQ(most_page_bytes(2'248), 3'000'000u);
    EXPECT_EQ(most_page_bytes(4'096), 5'000'000u);
    EXPECT_EQ(most_page_bytes(100'000), 5'000'000u);

    open({.n_layers = 6,
          .n_heads = 8,
          .n_kv_heads = 8,
          .n_prompt = 370,
          .n_decoded = 30,
          .budgets = {0, 64, 64}});
    const ReadPage page(run_page(source_));
    EXPECT_LE(page.html.size(), 1'000'000u);
    EXPECT_GT(page.html.size(), 800'000u);
    const std::string note = page.run["notes"][0];
    const auto attention = page.rows<std::uint16_t>("lane0.attention");
    EXPECT_LT(attention.size(), 31u * 48u);
    EXPECT_EQ(note.find("A page of this run has at most"), 0u) << note;
    std::size_t n = 0;
    for (int lane = 0; lane < 3; ++lane)
        n += page.rows<std::uint16_t>(fmt::format("lane{}.attention", lane)).size();
    EXPECT_NE(note.find(fmt::format("of {} of {} rows of a head", n, 3 * 31 * 48)), std::string::npos)
        << note;
    // All heads where the answers begin, and the first rows of the head in focus.
    const int focus = page.run["focus"]["layer"].get<int>() * 8 + page.run["focus"]["head"].get<int>();
    for (int head = 0; head < 48; ++head) EXPECT_TRUE(attention.contains({369, head})) << head;
    for (int row = 369; row < 369 + page.run["story"]["n_rows"].get<int>(); ++row)
        EXPECT_TRUE(attention.contains({row, focus})) << row;
}

TEST_F(Page, ValuesOfATemplateAreNotLookedThrough) {
    EXPECT_EQ(
        filled("a {{x}} b {{y}}{{x}}", [](std::string_view name) { return name == "x" ? "{{y}}" : "2"; }),
        "a {{y}} b 2{{y}}");
    EXPECT_EQ(filled("a {{", [](std::string_view) { return ""; }), "a {{");
}

class GardenGatePage : public testing::ProgramRun {
  protected:
    static std::string read_file(const std::filesystem::path& file) {
        std::ifstream in(file, std::ios::binary);
        return {std::istreambuf_iterator<char>(in), {}};
    }
    /// Returns the page without what differs from machine to machine: its numbers and the program's version.
    static std::string frame_of(const std::string& html) {
        std::string out;
        std::istringstream lines(html);
        for (std::string line; std::getline(lines, line);)
            if (!line.starts_with("<script type=\"application/") &&
                !line.starts_with("<meta name=\"generator\""))
                out += line + "\n";
        return out;
    }
};

/// README shows it to strangers. Numbers of another processor may differ in their last digits.
TEST_F(GardenGatePage, InAssetsIsTheProgramsOwn) {
    const std::string root = reference::source_folder().string();
    const std::string arguments =
        " --tokens 12 --lane full --lane h2o:budget=64 --lane tova:budget=64 --out out --export page";
    ASSERT_EQ(run("decode --prompt-file '" + root + "/assets/prompts/garden-gate.txt'" + arguments), 0)
        << output_;
    const ReadPage made(read("out/page.html")), kept(read_file(root + "/assets/garden-gate.html"));
    EXPECT_EQ(frame_of(made.html), frame_of(kept.html))
        << "assets/page changed; make it anew: keyhole decode --prompt-file assets/prompts/garden-gate.txt"
        << arguments << " && cp out/page.html assets/garden-gate.html";
    EXPECT_LE(kept.html.size(), 1'000'000u);
    for (const char* key :
         {"strings", "words", "story", "focus", "n_prompt", "last_row", "colors", "measures"})
        EXPECT_EQ(made.run[key], kept.run[key]) << key;
    for (int lane = 0; lane < 3; ++lane) {
        const Json &a = made.run["lanes"][to_index(lane)], &b = kept.run["lanes"][to_index(lane)];
        for (const char* key : {"answer", "tokens", "rows", "keeps", "spec", "kv_of", "paper"})
            EXPECT_EQ(a[key], b[key]) << lane << ' ' << key;
        const std::string name = fmt::format("lane{}.", lane);
        const std::vector<int> gone = made.section<int>(name + "evicted_at"),
                               its = kept.section<int>(name + "evicted_at");
        ASSERT_EQ(gone.size(), its.size());
        std::size_t n_other = 0;
        for (std::size_t i = 0; i < gone.size(); ++i) n_other += gone[i] != its[i] ? 1 : 0;
        EXPECT_LT(n_other, gone.size() / 500) << lane;
        ASSERT_EQ(made.section<int>(name + "attention.units"), kept.section<int>(name + "attention.units"));
        const auto values = made.section<std::uint16_t>(name + "attention"),
                   old = kept.section<std::uint16_t>(name + "attention");
        std::size_t n_far = 0;
        for (std::size_t i = 0; i < values.size(); ++i) {
            const float x = float_from_fp16(values[i]), y = float_from_fp16(old[i]);
            n_far += std::abs(x - y) > 2e-3f ? 1 : 0;  // NaN where one is evicted: counted above
        }
        EXPECT_LT(n_far, values.size() / 500) << lane;
    }
}

}  // namespace
}  // namespace keyhole::test_page
