/// The pictures and tables that show views of the window: one row says all of a kind. `decode`, `replay`, the
/// dialog Export and the window draw and caption them by it. One thread; knows no GL.
#pragma once

#include "app/view/focus_picture.h"
#include "app/view/lane_answers.h"
#include "app/view/story_text.h"
#include "app/view/view_files.h"
#include "app/view/view_state.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct PictureKind;
/// Returns the kind that draws the focused head's attention.
const PictureKind& usual_picture();

/// A picture, as --export names it: the name of its kind, and arguments.
struct ViewWord {
    const PictureKind* kind = &usual_picture();
    int a = 0, b = 0;             ///< lanes
    std::string words;            ///< measure, or words to find
    std::vector<int> positions;   ///< positions of tokens; for a watched span, its first and last
    std::vector<int> lanes = {};  ///< lanes side by side; empty: all
    bool operator==(const ViewWord&) const = default;
};

/// What pictures are drawn from.
struct PictureSource {
    const RunHistory* history = nullptr;
    ViewState view;          ///< the shown step and head, and the colours
    ShownLane focus;         ///< the focused lane
    PictureOptions options;  ///< width, background, part of the matrix, which rows are stored
    /// Largest value of the focused head in its range, if it is known; else it is computed.
    std::optional<float> largest = {};
    const MeasureCurves* measures = nullptr;  ///< null: they are computed
    /// Returns the index into history.lanes() of a lane by its number; empty: by the lanes of the last step.
    std::function<int(int number)> lane_of = {};
    std::optional<Story> story = {};         ///< as the window shows it; empty: that of the records
    std::vector<ShownLane> beside = {};      ///< lanes side by side; empty: all at the end of the run
    std::vector<ShownAnswer> answers = {};   ///< marked
    std::vector<std::string> specs = {};     ///< the settings of the answers' lanes
    std::string right_answer = {};           ///< empty: not known
    std::string program = {}, command = {};  ///< for a page: what made it; empty: not known
};

/// One picture to draw. view: the source's, with what the word chooses.
struct PictureJob {
    const ViewWord& word;
    const PictureSource& source;
    ViewState view;
    const RunHistory& history() const { return *source.history; }
};

/// The counts that the size of a picture depends on.
struct PictureShape {
    PictureChoice how;
    std::int64_t n_rows = 0, n_positions = 0;  ///< of a heat map
    std::int64_t n_steps = 0, n_lanes = 0;     ///< of curves
    std::int64_t n_heads = 0, n_files = 0;     ///< n_heads: of the model
};

/// The arguments of a word.
enum class PictureArguments { none, two_lanes, some_lanes, measure, positions, span };

struct PictureKind {
    std::string_view name;  ///< the word of --export
    PictureArguments arguments = PictureArguments::none;
    HeatMode mode = HeatMode::attention;
    bool of_heads = false;       ///< a picture for each chosen head
    bool of_cells = false;       ///< a heat map: rows and colours can be chosen
    bool of_focus = false;       ///< of the focused lane
    bool of_step = false;        ///< of the shown step
    bool of_lanes = false;       ///< of lanes side by side
    bool of_answers = false;     ///< of the lanes' own answers
    bool marks_words = false;    ///< the watched ones
    bool needs_answers = false;  ///< it shows nothing else
    bool is_slow = false;        ///< the window draws it in the background
    PictureFormat usual = PictureFormat::png;
    /// Sets what the word chooses, such as the plotted measure; null: nothing. Throws Error(wrong_use).
    void (*prepare)(PictureJob&) = nullptr;
    /// Returns the name of its files without ending and head.
    std::string (*file)(const PictureJob&);
    Drawing (*draw)(const PictureJob&) = nullptr;       ///< null: a table alone
    std::string (*table)(const PictureJob&) = nullptr;  ///< null: a picture alone
    std::string_view table_ending = ".csv";
    std::int64_t (*bytes)(const PictureShape&);  ///< of the files of one head, about
};

std::span<const PictureKind> picture_kinds();
/// Returns null if there is none.
const PictureKind* find_picture(std::string_view name);
/// Returns the words that the dialog Export offers; others are typed there.
std::span<const std::string_view> offered_pictures();

/// Returns the form of a kind's arguments: "A-B"; empty: it has none.
std::string_view argument_form(PictureArguments arguments);

/// Returns the job of a word. Throws Error(wrong_use) for words that the text does not contain.
PictureJob picture_job(const ViewWord& word, const PictureSource& source);
Drawing draw_picture(const ViewWord& word, const PictureSource& source);
std::string picture_table(const ViewWord& word, const PictureSource& source);

/// Returns the tokens that `watched` shows. Throws Error(wrong_use) if the lane's text lacks its words.
TokenSpan watched_tokens(const RunHistory& history, int lane, const ViewWord& word);

/// Returns the lanes with a record at the end of the run, in order.
std::vector<ShownLane> shown_lanes(const RunHistory& history);
/// Returns one of them. index: among the lanes at the end of the run.
ShownLane shown_lane(const RunHistory& history, int index);

}  // namespace keyhole
