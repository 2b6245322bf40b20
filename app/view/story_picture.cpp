#include "app/view/story_picture.h"

#include "app/view/heat_data.h"
#include "app/view/run_facts.h"
#include "engine/analysis/run_rows.h"
#include "engine/analysis/token_state.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/index.h"
#include "engine/base/model_name.h"
#include "engine/export/captions.h"
#include "engine/figure/lane_columns.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace keyhole {

namespace {

/// A story, and what its picture draws beside it.
struct ToldStory {
    Story story;
    std::optional<TokenSpan> words;
    HeadPlace head;
    std::vector<ShownLane> lanes;  ///< those with records
};

ToldStory told_story(const PictureJob& job) {
    const PictureSource& source = job.source;
    const PictureOptions& options = source.options;
    ToldStory out{{}, source.view.watched, {job.view.layer, job.view.head}, source.beside};
    if (source.story) {
        out.story = *source.story;
        return out;
    }
    const RunFacts facts = run_facts(source);
    const bool chosen = options.layers.size() == 1 && options.heads.size() == 1;
    return {facts.story, facts.words,
            chosen ? HeadPlace{options.layers.front(), options.heads.front()} : facts.focus, facts.lanes};
}

/// Returns the range of colours that the lanes share.
ColorScale shared_scale(const PictureJob& job, const ViewState& view, const std::vector<ShownLane>& lanes) {
    float most = 0;
    for (const ShownLane& lane : lanes) {
        if (view.mode == HeatMode::mask) break;
        HeatData data(HeatData::Kind::head);
        data.update(job.history(), lane.lane, view, std::numeric_limits<double>::infinity());
        most = std::max(most, data.focus().largest(view.range().sinks_count));
    }
    return color_scale(view, most);
}

void add_legend(LaneColumnsFigure& figure, const PictureJob& job, const ViewState& view,
                const ColorScale& scale) {
    const CellColors colors = cell_colors(figure.background);
    if (view.mode == HeatMode::mask)
        figure.items = {{"attended, kept", {colors.kept}},
                        {"attended for the last time", {colors.last_seen}}};
    else
        figure.bar = LegendBar{view.mode == HeatMode::score ? "score" : "attention", scale};
    figure.items.push_back({"evicted", {{}, true}});
    if (view.watched)
        figure.items.push_back(
            {span_name(job.history(), 0, *view.watched), {figure_colors(figure.background).differs}});
}

LaneColumnsFigure figure_of(const PictureJob& job) {
    const PictureOptions& options = job.source.options;
    LaneColumnsFigure figure;
    figure.width = options.width;
    figure.print = options.print;
    figure.background = options.background;
    return figure;
}

/// Returns the options of one lane's map of that size.
PictureOptions options_of(const PictureJob& job, const FigureSize& size) {
    PictureOptions options = job.source.options;
    options.width = size.width;
    options.print = size.print;
    options.plot_height = size.plot_height;
    options.has_legend = false;
    return options;
}

/// Returns the columns that have room for their words, around the watched ones.
TokenSpan columns_in(const FigureSize& size, TokenSpan words, int last) {
    constexpr double kBeside = 120, kColumn = 14;  // pixels at text of normal size
    constexpr int kLeast = 4;
    const double scale = text_scale(size.width, size.print);
    const int room = static_cast<int>((size.width / scale - kBeside) / kColumn);
    const int around = std::clamp((room - words.size()) / 2, kLeast, Story::kAround);
    return {std::max(words.first - around, 0), std::min(words.last + around, last)};
}

/// Returns the text around the watched words, struck through where no head of the lane keeps them.
std::vector<ShownWord> words_around(const PictureJob& job, TokenSpan words, int lane) {
    const RunHistory& history = job.history();
    const int n = n_tokens_at(history, lane, job.view.row);
    std::vector<float> share(to_index(n));
    kept_share(history, lane, job.view.row, 0, history.layout(lane).n_kv_heads(), share);
    const int first = std::max(words.first - Story::kAround, 0),
              last = std::min(words.last + Story::kAround, n - 1);
    std::vector<ShownWord> out;
    if (first > 0) out.push_back({"[…] ", false, false, true});
    for (int p = first; p <= last; ++p)
        out.push_back({token_text(history, lane, p), share[to_index(p)] == 0, words.holds(p), false});
    if (last < history.last_row()) out.push_back({" […]", false, false, true});
    return out;
}

/// Returns the squares of a lane's heads, line by line.
void add_squares(LaneColumn& column, const RunHistory& history, const StoryLane& lane,
                 const std::string& words) {
    if (lane.holds.empty()) return;
    const SquareGrid grid = square_grid(history.run().layout, static_cast<int>(lane.holds.size()));
    column.squares_across = grid.across;
    column.holds.resize(lane.holds.size());
    for (std::size_t g = 0; g < lane.holds.size(); ++g) {
        const auto [x, y] = grid.place(static_cast<int>(g));
        column.holds[to_index(y * grid.across + x)] = lane.holds[g];
    }
    column.holds_note = fmt::format("{} of {} heads had “{}”", lane.n_holding, lane.holds.size(), words);
}

LaneColumn column_of(const PictureJob& job, const ToldStory& told, const StoryLane& lane,
                     const ViewState& view, const ColorScale& scale) {
    LaneColumn column;
    column.name = fmt::format("{} {}", lane.lane, lane.name);
    column.warns = !lane.mark.empty();
    column.note = column.warns ? lane.mark : lane.keeps.empty() ? "" : "keeps " + lane.keeps;
    column.mark = lane.shown.mark;
    column.answer = answer_words(lane.shown.answer);
    add_squares(column, job.history(), lane, told.story.words);
    const auto shown = std::ranges::find(told.lanes, lane.lane, &ShownLane::index);
    if (shown == told.lanes.end()) return column;
    column.look = shown->look;
    if (!told.words) return column;
    column.drawing = [&job, &told, &lane, view, scale, known = shown->lane](const FigureSize& size) {
        PictureOptions options = options_of(job, size);
        const TokenSpan columns = columns_in(size, *told.words, job.history().last_row());
        const int first = told.story.first_row,
                  last = std::min(first + told.story.n_rows - 1, job.history().last_row());
        options.shown = CellRect{first, last, columns.first, columns.last};
        for (const std::string& word : lane.rows)
            options.row_words.push_back(without_blanks(word).empty() && !word.empty() ? "␣" : word);
        return focus_picture(job.history(), known, view, scale, options);
    };
    return column;
}

std::string caption_of(const PictureJob& job, const ToldStory& told, const std::vector<ShownWord>& words,
                       const ViewState& view, const ColorScale& scale) {
    std::string caption = fmt::format("Rows: the words that a lane chooses. Columns: the text. {}",
                                      head_caption(view.mode, scale));
    if (std::ranges::any_of(words, &ShownWord::gone))
        caption += fmt::format(" Struck through: no head of lane {} keeps it.", job.source.focus.index);
    if (std::ranges::any_of(told.story.lanes, &StoryLane::is_fed))
        caption += " The lanes read lane 0's words, so their maps are of these.";
    return caption;
}

/// Returns the height of a map whose rows are so few that square cells would make it a line; 0: of any other.
int height_of_rows(const PictureJob& job) {
    constexpr int kRow = 18, kMost = 240, kFewer = 6;
    const CellRect all{0, job.view.row, 0, job.view.row}, shown = job.source.options.shown.value_or(all);
    const int n_rows = shown.last_row - shown.first_row + 1,
              n_columns = shown.last_position - shown.first_position + 1;
    return n_rows * kFewer < n_columns ? std::min(n_rows * kRow, kMost) : 0;
}

}  // namespace

Drawing story_picture(const PictureJob& job) {
    const RunHistory& history = job.history();
    const ToldStory told = told_story(job);
    ViewState view = job.view;
    view.layer = told.head.layer;
    view.head = told.head.head;
    view.watched = told.words;
    const ColorScale scale = shared_scale(job, view, told.lanes);
    LaneColumnsFigure figure = figure_of(job);
    const std::string model = model_name(history.run().model_path),
                      head = head_title(view.mode, history.run().layout, view.layer, view.head);
    if (told.words) {
        figure.words = words_around(job, *told.words, job.source.focus.lane);
        add_legend(figure, job, view, scale);
    }
    figure.texts = {told.story.question.empty() ? model : told.story.question,
                    fmt::format("{} · {}", model, head), caption_of(job, told, figure.words, view, scale)};
    constexpr int kRow = 20;
    figure.plot_height = kRow * std::max(told.story.n_rows, 4);
    for (const StoryLane& lane : told.story.lanes)
        figure.lanes.push_back(column_of(job, told, lane, view, scale));
    figure.sentence = told.story.sentence;
    figure.warns = told.story.warns;
    figure.remedy = told.story.given_back;
    return lane_columns_drawing(figure);
}

Drawing lanes_picture(const PictureJob& job) {
    const RunHistory& history = job.history();
    const PictureSource& source = job.source;
    std::vector<ShownLane> lanes = source.beside.empty() ? shown_lanes(history) : source.beside;
    if (const std::vector<int>& chosen = job.word.lanes; !chosen.empty())
        std::erase_if(lanes, [&](const ShownLane& lane) {
            return std::ranges::find(chosen, lane.index) == chosen.end();
        });
    const ColorScale scale = shared_scale(job, job.view, lanes);
    LaneColumnsFigure figure = figure_of(job);
    figure.texts = {head_title(job.view.mode, history.run().layout, job.view.layer, job.view.head),
                    model_name(history.run().model_path), head_caption(job.view.mode, scale)};
    add_legend(figure, job, job.view, scale);
    figure.plot_height = height_of_rows(job);
    for (const ShownLane& lane : lanes) {
        LaneColumn column;
        column.name = lane.name;
        column.look = lane.look;
        const LaneRecord* record = history.lane_record(job.view.row, lane.lane);
        if (record != nullptr) column.note = record->info->effective;
        for (const ShownAnswer& shown : source.answers)
            if (shown.lane == lane.index) {
                column.mark = shown.mark;
                column.answer = answer_words(shown.answer);
            }
        column.drawing = [&job, scale, known = lane.lane](const FigureSize& size) {
            return focus_picture(job.history(), known, job.view, scale, options_of(job, size));
        };
        figure.lanes.push_back(std::move(column));
        if (const std::string note =
                recording_note(history, lane.lane, source.options.stride, source.options.dense_from);
            !note.empty())
            figure.texts.caption += fmt::format(" Lane {}: {}.", lane.index, note);
    }
    return lane_columns_drawing(figure);
}

}  // namespace keyhole
