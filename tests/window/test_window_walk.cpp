// A random walk over lanes, steps, prompts and models, during which every name and number on the screen is
// compared with the record that it claims to show, in every frame, also while work is going on.
// KEYHOLE_WALK_MOVES=2000 makes it longer, KEYHOLE_WALK_SEED=7 walks elsewhere.
#include "app/state/story.h"
#include "app/window/window.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/run/run_settings.h"
#include "tests/window/run_archive.h"
#include "tests/window/screen_check.h"
#include "tests/window/screen_words.h"
#include "tests/window/window_run.h"

#include <fmt/ranges.h>

#include <array>
#include <deque>
#include <map>
#include <random>
#include <regex>
#include <set>

namespace keyhole::test_window_walk {
namespace {

using testing::AloneRun;
using testing::RunArchive;
using testing::ScreenCheck;

constexpr std::size_t kMostReports = 40;

constexpr std::array<std::string_view, 8> kSpecs = {
    "h2o:budget=48",  "tova:budget=56",   "a2sf:budget=40", "keyformer:budget=60",
    "sink:budget=52", "window:budget=44", "h2o:budget=30",  "tova:budget=36"};
constexpr std::array<std::string_view, 6> kOptions = {"budget=32", "budget=50",   "budget=96",
                                                      "recent=8",  "scope=layer", "budget=24"};
constexpr std::array<std::string_view, 4> kModels = {"keyhole-base", "keyhole-gqa2", "keyhole-mqa",
                                                     "keyhole-mlkv2"};
constexpr std::array<std::string_view, 2> kPrompts = {
    "The code of the gate is 4821. The cat sat on the mat and the dog lay by the door of the old house near "
    "the river, and the hen sat on the wall by the road. What is the code of the gate?\n",
    "Tom has a red ball. Anna has a blue ball. They play in the garden all day long, and then they go home "
    "and eat bread and plums. Tom has a"};

class Walk : public WindowDriver {
  public:
    Walk(unsigned seed, int n_moves) : random_(seed), n_moves_(n_moves) {}
    std::vector<std::string> script;  ///< runs these moves in place of random ones

    bool turn(AppState& app) override {
        archive_.take(app.run.engine());
        if (quitting_) return false;
        switch (pace_) {
            case Pace::at_once:
                break;
            case Pace::frames:
                if (n_frames_ < go_on_at_) return false;
                break;
            case Pace::idle:
                if (!app.idle() || !is_settled(app)) return false;
                pace_ = Pace::frames;  // this state is drawn first
                go_on_at_ = n_frames_ + 1;
                return true;
        }
        if (n_made_ == n_moves_ || (!script.empty() && to_index(n_made_) == script.size())) {
            quitting_ = true;
            run_action(app, "quit");
            return true;
        }
        move(app);
        return true;
    }

    void drawn(AppState& app, const PanelShared& shared) override {
        ++n_frames_;
        archive_.take(app.run.engine());
        const bool settled = app.idle() && is_settled(app);
        ScreenCheck check(app, shared, archive_, settled);
        if (std::getenv("KEYHOLE_WALK_SHOWS") != nullptr) show(shared);
        n_judged_ += check.judged() || !app.run.has_steps() ? 1 : 0;
        std::vector<std::string> faults = check.faults();
        look_at_notice(app, faults);
        if (settled && check.judged() && n_made_ != compared_at_) {
            compared_at_ = n_made_;
            if (n_made_ % 6 == 0 || !script.empty()) compare_alone(app, check, faults);
        }
        for (const std::string& fault : faults) note(app, check, fault);
    }

    std::map<std::string, int> n_faults;  ///< by pane
    std::vector<std::string> reports;
    int n_frames() const { return n_frames_; }
    int n_judged() const { return n_judged_; }
    int n_compared() const { return n_compared_; }
    int n_reasons() const { return n_reasons_; }

  private:
    enum class Pace { at_once, frames, idle };
    std::mt19937 random_;
    const int n_moves_;
    RunArchive archive_;
    Pace pace_ = Pace::idle;
    int n_made_ = 0, n_frames_ = 0, n_judged_ = 0, go_on_at_ = 0, compared_at_ = -1, n_compared_ = 0,
        n_reasons_ = 0;
    bool quitting_ = false;
    std::deque<std::string> last_moves_;
    RequestId went_back_ = 0;  // the request of the last rewind or branch
    std::set<std::string> reported_;

    int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(std::max(n, 1))); }
    template <class List>
    std::string one_of(const List& list) {
        return std::string(list[to_index(below(static_cast<int>(list.size())))]);
    }

    bool is_settled(const AppState& app) const {
        return archive_.status().handled == app.run.engine().last_request();
    }

    static void show(const PanelShared& shared) {
        std::printf("---- frame\n");
        for (const auto& [pane, lines] : lines_of_panes(screen_texts(*ImGui::GetDrawData()), shared))
            for (const std::string& line : lines) std::printf("%s: %s\n", pane.c_str(), line.c_str());
    }

    std::string random_move(const AppState& app) {
        const int n = app.run.lane_editor.n_lanes(), first = app.run.first_row(), last = app.run.last_row();
        const int lane = below(n), row = first + below(last - first + 1), position = below(last + 1);
        switch (below(30)) {
            case 0:
                return n < 5 ? "add " + one_of(kSpecs) : fmt::format("remove {}", 1 + below(n - 1));
            case 1:
                return n < 5 ? std::string("add") : fmt::format("remove {}", 1 + below(n - 1));
            case 2:
            case 3:
                return n > 2 ? fmt::format("remove {}", 1 + below(n - 1)) : "add " + one_of(kSpecs);
            case 4:
                return n < 5 ? std::string("fork") : std::string("remove");
            case 5:
                return n < 5 ? fmt::format("fork {} {}", lane, one_of(kSpecs)) : std::string("remove");
            case 6:
            case 7:
                return fmt::format("lane {} {}", std::max(lane, 1), one_of(kSpecs));
            case 8:
                return "lane.set " + one_of(kOptions);
            case 9:
            case 10:
                return "run.restart";
            case 11:
                return "run.stop";
            case 12:
            case 13:
                return fmt::format("rewind {}{}", row, below(3) == 0 ? " keep" : "");
            case 14: {
                const std::vector<Branch>& branches = app.run.status.other_branches;
                return branches.empty()
                           ? fmt::format("rewind {}", row)
                           : fmt::format("branch {}",
                                         branches[to_index(below(static_cast<int>(branches.size())))].id);
            }
            case 15:
                return "model " + one_of(kModels);
            case 16:
                return below(2) == 0 ? "prompt " + one_of(kPrompts)
                                     : "open " + reference::source_folder().string() +
                                           "/assets/prompts/garden-gate.txt";
            case 17:
            case 18:
            case 19:
                return fmt::format("step {}", 1 + below(6));
            case 20:
                return "run.play";
            case 21:
                return "say \"\\nWhat is the code of the gate?\\n\"";
            case 22:
                return fmt::format("{} {} {}", below(2) == 0 ? "evict" : "pin", lane, position);
            case 23:
                return below(2) == 0 ? "lane.undo" : "lane.redo";
            case 24:
            case 25:
                return fmt::format("lane.focus {}", lane);
            case 26:
                return std::string(std::array{"time.first", "time.last", "view.compare",
                                              "view.explore"}[to_index(below(4))]);
            case 27:
                return fmt::format("time.show {}", row);
            case 28:
                return fmt::format("watch {} {}", std::max(last - below(6), 0), last);
            default:
                return fmt::format("goto {} {}", below(4), below(4));
        }
    }

    void move(AppState& app) {
        const std::string text = script.empty() ? random_move(app) : script[to_index(n_made_)];
        ++n_made_;
        last_moves_.push_back(text);
        if (last_moves_.size() > 7) last_moves_.pop_front();
        try {
            if (text.starts_with("frames ")) {
            } else if (text != "idle") {
                run_action(app, text);
            }
        } catch (const Error& error) {
            app.notify(error.what(), true);
        }
        if (text.starts_with("rewind") || text.starts_with("branch"))
            went_back_ = app.run.engine().last_request();
        if (!script.empty()) {
            pace_ = text == "idle" ? Pace::idle : Pace::frames;
            go_on_at_ = n_frames_ + (text.starts_with("frames ") ? std::stoi(text.substr(7)) : 1);
            return;
        }
        const int how = below(4);
        pace_ = how == 0 ? Pace::at_once : how == 1 ? Pace::frames : Pace::idle;
        go_on_at_ = n_frames_ + 1 + below(3);
    }

    /// "went back" is said when the engine did so.
    void look_at_notice(const AppState& app, std::vector<std::string>& faults) const {
        if (app.notice.text.starts_with("went ") && app.run.status.handled < went_back_)
            faults.push_back("notice: '" + app.notice.text + "' before it happened");
    }

    /// Makes the shown run once more without a window, and compares the record and the answers with it.
    void compare_alone(const AppState& app, const ScreenCheck& check, std::vector<std::string>& faults) {
        if (!app.run.live() || app.run.status.phase == EnginePhase::failed || !app.run.recorded()) return;
        ++n_compared_;
        const RunHistory& shown = *archive_.run(app.run.history.run().id);
        const AloneRun alone =
            testing::run_alone(shown.run().model_path, archive_.status().run, shown.last_row(), true);
        for (const auto& step : shown.steps()) {
            if (step->row > alone.history.last_row()) break;
            if (const std::string differs = testing::difference_of(*step, alone.history.at_row(step->row));
                !differs.empty()) {
                faults.push_back(fmt::format("record: step {}: {}", step->row, differs));
                break;
            }
        }
        look_at_reason(app, check, alone, faults);
        for (const ScreenCheck::AnswerLine& line : check.answer_lines()) {
            const LaneAnswer* its = alone.answer(line.lane);
            const LaneAnswer answer = its != nullptr ? *its : LaneAnswer();
            const std::string right = app.run.setup.guide.answer;
            const bool known = its != nullptr && !right.empty() && answer.turn < 0 && answer.failure.empty();
            if (known && (line.right != answer_holds(answer.text, right) || line.right == line.wrong))
                faults.push_back(fmt::format("answers: lane {} has {}{}, it answers '{}'", line.lane,
                                             line.right ? "✓" : "", line.wrong ? "✗" : "", answer.text));
            if (!same_words(line.words, answer.text + answer.failure))
                faults.push_back(
                    fmt::format("answers: lane {} '{}', alone '{}'", line.lane, line.words, answer.text));
        }
    }
    /// "H2O is wrong: when it answered, 1 of 48 heads still had “4821” (TOVA: 16)."
    void look_at_reason(const AppState& app, const ScreenCheck& check, const AloneRun& alone,
                        std::vector<std::string>& faults) {
        const std::string text = check.reason();
        std::smatch found;
        if (!app.view.watched ||
            !std::regex_search(text, found, std::regex("when it answered, (none|\\d+) of (\\d+) heads")))
            return;
        int lane = -1;
        std::size_t longest = 0;  // "A2SF alpha=0.2" begins with another lane's "A2SF"
        for (const ScreenCheck::AnswerLine& line : check.answer_lines()) {
            const std::string name = paper_name(line.title.substr(line.title.find(' ') + 1));
            if (!text.starts_with(name + " ") || name.size() < longest) continue;
            longest = name.size();
            lane = line.lane;
        }
        if (lane < 0) return faults.push_back("answers: no lane has the name in '" + text + "'");
        const RunSpec& run = archive_.status().run;
        const std::vector<LaneSpec> lanes = settings_at(run).lane_specs();
        const LaneAnswer* answer = alone.answer(lane);
        if (answer == nullptr) return;
        const int turn = answer->turn;
        testing::Held held;
        if (turn < 0) {  // it has its present settings from the prompt on
            RunSpec anew = run;
            anew.lanes = lanes;
            anew.commands.clear();
            const RunHistory prompt =
                testing::run_alone(alone.history.run().model_path, anew, 0, false).history;
            held = testing::held(prompt, lane, *app.view.watched, prompt.last_row());
        } else {
            held = testing::held(alone.history, alone.history.lane_from_id(answer->lane_id).value(),
                                 *app.view.watched, turn);
        }
        const int said = found[1] == "none" ? 0 : std::stoi(found[1]);
        if (said != held.n_whole || std::stoi(found[2]) != held.n_heads)
            faults.push_back(fmt::format("answers: '{}', alone {} of {}", text, held.n_whole, held.n_heads));
        ++n_reasons_;
    }

    static bool same_words(const std::string& shown, const std::string& text) {
        const auto plain = [](const std::string& words) {
            std::string out;
            for (const char c : words)
                if (!std::isspace(static_cast<unsigned char>(c))) out += c;
            return out;
        };
        const std::string a = testing::without_signs(plain(shown)), b = plain(text);
        const std::size_t dots = a.rfind("…");
        return a == "(nothing)" || a == "–"
                   ? b.empty()
                   : b.starts_with(a.substr(0, dots)) && (dots != std::string::npos || a == b);
    }

    void note(const AppState& app, const ScreenCheck& check, const std::string& fault) {
        const std::string pane = fault.substr(0, fault.find(':'));
        ++n_faults[pane];
        if (reports.size() >= kMostReports || !reported_.insert(fmt::format("{} {}", pane, n_made_)).second)
            return;
        reports.push_back(fmt::format("after {} (phase {}, step {}, frame {}):\n  {}\n      {}",
                                      fmt::join(last_moves_, " | "), static_cast<int>(app.run.status.phase),
                                      app.view.row, n_frames_, fault, check.words_of(pane)));
    }
};

class WindowWalk : public ::testing::Test {
  protected:
    void SetUp() override {
        if (!testing::has_display()) GTEST_SKIP() << "no display";
        ::setenv("LP_NO_RAST", "1", 1);
    }
    void TearDown() override { ::unsetenv("LP_NO_RAST"); }

    static void walk(Walk& driver, const std::string& prompt, std::vector<std::string> lanes) {
        WindowOptions options;
        options.driver = &driver;
        options.setup.model_folder = testing::kModel;
        PromptFile file = read_prompt_file(reference::source_folder() / "assets/prompts" / prompt);
        options.setup.prompt = file.text;
        options.setup.guide = file.guide;
        for (const std::string& lane : lanes) options.setup.lanes.push_back(parse_lane_spec(lane));
        options.backend.choice = BackendChoice::cpu;
        options.width = 1600, options.height = 1180;
        run_window(std::move(options));
        for (const std::string& report : driver.reports) ADD_FAILURE() << report;
        std::printf("%d frames, %d compared, %d runs made once more\n", driver.n_frames(), driver.n_judged(),
                    driver.n_compared());
        for (const auto& [pane, n] : driver.n_faults) std::printf("  %s: %d faults\n", pane.c_str(), n);
    }
};

TEST_F(WindowWalk, EverythingOnTheScreenIsOfItsRecord) {
    const char* moves = std::getenv("KEYHOLE_WALK_MOVES");
    const char* seed = std::getenv("KEYHOLE_WALK_SEED");
    Walk driver(seed == nullptr ? 1 : static_cast<unsigned>(std::stoul(seed)),
                moves == nullptr ? 60 : std::stoi(moves));
    walk(driver, "garden-gate.txt", {"full", "h2o:budget=64", "tova:budget=64"});
    EXPECT_GT(driver.n_judged(), driver.n_frames() * 8 / 10);
}

TEST_F(WindowWalk, Script) {
    const char* file = std::getenv("KEYHOLE_WALK_SCRIPT");
    if (file == nullptr) GTEST_SKIP();
    Walk driver(1, 1000000);
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);)
        if (!line.empty()) driver.script.push_back(line);
    walk(driver, "garden-gate.txt", {"full", "h2o:budget=64", "tova:budget=64"});
}

}  // namespace
}  // namespace keyhole::test_window_walk
