/// A lesson: a question, the run that answers it, and steps to predict, see and try. Plain values;
/// any thread; knows no session and no window.
#pragma once

#include "app/view/panes.h"
#include "engine/analysis/opening_head.h"
#include "engine/analysis/token_span.h"
#include "engine/run/command.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace keyhole {

/// A text of a lesson: written in it, or a part of a file of Keyhole.
struct LessonText {
    std::string text;  ///< used if `file` is empty
    std::string file;  ///< below assets/, such as "prompts/garden-gate.txt"
    int from = 0;      ///< first byte of the part
    int bytes = 0;     ///< of the part; 0: all
    bool empty() const { return text.empty() && file.empty(); }
    bool operator==(const LessonText&) const = default;
};

/// The run that a lesson, or one of its steps, starts.
struct LessonRun {
    std::string model = "keyhole-base";  ///< name in the catalogue
    LessonText prompt;
    LessonText then;  ///< read by every lane after the prompt; empty: lanes go on by themselves
    std::vector<std::string> lanes = {"full"};
    bool follow = false;
    bool chat = false;
    std::string answer, watch;  ///< as in PromptGuide
    std::vector<std::string> stop = {".", "\n"};
    bool operator==(const LessonRun&) const = default;
};

/// Decodes so many steps.
struct DecodeSteps {
    int n = 1;
    bool operator==(const DecodeSteps&) const = default;
};
/// evict, pin or unpin LANE "WORDS" [PLACE]: the tokens of words, wherever they are.
struct TouchWords {
    std::string verb;
    int lane = 0;
    std::string words;
    int layer = -1, head = -1;  ///< -1: all
    bool operator==(const TouchWords&) const = default;
};
/// rewind +N: returns to right after the N-th decoded step.
struct GoBack {
    int n = 0;
    bool operator==(const GoBack&) const = default;
};
/// fault LANE KIND: alters the records of a lane as a broken cache would have made them, so that the doctor
/// has something to find. The run itself stays sound; it cannot be continued from the altered records.
///     mask       the mask says that a token has left, but the cache still counts it
///     twice      the last token that left leaves a second time
///     attention  the last step's attention sums to 1.1
struct AlterRecords {
    int lane = 0;
    std::string kind;
    bool operator==(const AlterRecords&) const = default;
};
/// The commands that a lesson gives to its run. Engine commands other than these touch no file and no setting
/// of the window, so that a lesson from a stranger is safe to open.
struct LessonCommand {
    std::string text;  ///< as written
    std::variant<DecodeSteps, TouchWords, GoBack, AlterRecords, Command> what;
    bool operator==(const LessonCommand&) const = default;
};
/// Parses `step N`, `evict LANE "WORDS" [L2[.H3]]` (also pin, unpin), `rewind +N`, `fault LANE KIND` or an
/// engine command. Throws Error(wrong_use) with the valid forms.
LessonCommand parse_lesson_command(std::string_view text);

/// Tokens that a claim or a view is about. At most one member is set; none: all tokens.
struct TokenSet {
    std::string words;               ///< first occurrence in the text
    std::optional<TokenSpan> range;  ///< positions
    enum class Part { all, prompt, generated } part = Part::all;
    bool operator==(const TokenSet&) const = default;
};

/// A predicate on a run: a measure, what it is measured of, and what it must be. lesson_claims.h lists the
/// measures.
struct Claim {
    enum class Is { equal, above, below, at_least, at_most, contains, lacks };
    std::string measure;
    int lane = 0, other = 0;
    TokenSet tokens;
    int layer = -1, head = -1;                 ///< -1: the mean of all
    std::optional<std::pair<int, int>> steps;  ///< decoded steps, 0: the prompt's last row; empty: all
    double more_than = 0;                      ///< limit of `heads_above`
    std::optional<int> over;                   ///< divides by the same measure of this lane
    Is is = Is::equal;
    double value = 0;
    std::string text;  ///< of contains and lacks
    bool operator==(const Claim&) const = default;
};

/// The prediction that a step asks for before the reveal.
struct Prediction {
    enum class Kind { choice, slider, token };
    Kind kind = Kind::choice;
    std::string question;
    std::vector<std::string> choices;  ///< of a choice
    int right = 0;                     ///< index of the right choice
    double low = 0, high = 1;          ///< of a slider
    int claim = 0;                     ///< the slider's true value is what this claim measures
    TokenSet tokens;                   ///< the right tokens, of a token
    bool operator==(const Prediction&) const = default;
};

/// The thing to look at: a ring around it, and the view that shows it. Empty members change nothing.
struct Look {
    Pane pane = Pane::none;
    TokenSet tokens;  ///< a ring around these words, in the text
    std::optional<int> lane, layer, head;
    std::optional<int> other;      ///< lane to compare with
    std::string mode;              ///< attention, mask, score
    std::string arrangement;       ///< explore, compare, teach
    std::string curve;             ///< a measure, or "watched"
    std::string color;             ///< of the atlas: the name of an AtlasColor
    std::vector<HeadPlace> heads;  ///< ringed in the atlas
    int zoom = 0;                  ///< pixels of a cell of the heat map, around the newest step; 0: fitted
    bool operator==(const Look&) const = default;
};

/// One control to play with: a slider of a number of a lane, or buttons that run commands.
struct LessonControl {
    std::string text;
    int lane = 0;
    std::string key;  ///< a key of the lane spec; empty: buttons
    double low = 0, high = 0;
    struct Button {
        std::string label;
        std::vector<LessonCommand> commands;
        bool operator==(const Button&) const = default;
    };
    std::vector<Button> buttons;
    bool operator==(const LessonControl&) const = default;
};

struct LessonStep {
    std::string title, text;
    std::optional<LessonRun> run;  ///< starts a new run
    std::vector<LessonCommand> commands;
    Look look;
    std::optional<Prediction> predict;
    std::vector<LessonCommand> reveal_commands;
    std::string reveal;  ///< {1} is what claim 1 measured
    std::vector<Claim> claims;
    std::optional<LessonControl> play;
    std::string note;  ///< for the teacher
    bool operator==(const LessonStep&) const = default;
};

struct Lesson {
    static constexpr int kMostWords = 40;  ///< of a step's text, and of a reveal
    int number = 0;                        ///< order in the list; 0: none
    std::string title, question;
    LessonRun run;
    std::string note;  ///< for the teacher
    std::vector<LessonStep> steps;
    bool operator==(const Lesson&) const = default;
};

/// Returns the run that a step belongs to: the last one that a step up to it starts, else the lesson's.
const LessonRun& run_of_step(const Lesson& lesson, int step);
/// Returns the step that begins this run.
int first_step_of_run(const Lesson& lesson, int step);
int count_words(std::string_view text);

}  // namespace keyhole
