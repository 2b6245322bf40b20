#include "app/view/view_export.h"

#include "engine/analysis/watched_span.h"
#include "engine/base/csv_field.h"
#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/figure/no_room.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace keyhole {

namespace {

void check_lane(std::string_view where, int lane, const ViewLimits& limits) {
    if (limits.n_lanes >= 0 && lane >= limits.n_lanes)
        fail(ErrorCode::wrong_use, "{}: lane {} does not exist; at its end the run has lanes 0 to {}", where,
             lane, limits.n_lanes - 1);
}

void check_indices(const std::vector<int>& asked, int n, std::string_view what) {
    for (const int i : asked)
        if (i < 0 || i >= n)
            fail(ErrorCode::wrong_use, "--{0}s: {0} {1} does not exist; the model has {0}s 0 to {2}", what, i,
                 n - 1);
}

/// Returns the number of heads that a word draws one by one; 1 for other words.
std::int64_t n_heads_of(const ViewWord& word, const ViewExport& how, const ViewLimits& limits) {
    if (!word.kind->of_heads) return 1;
    return static_cast<std::int64_t>(chosen_or_all(how.layers, limits.n_layers).size() *
                                     chosen_or_all(how.heads, limits.n_heads).size());
}

/// Returns the number of files that a word makes of a head.
std::int64_t n_files_of(const ViewWord& word, const ViewExport& how) {
    return (word.kind->draw != nullptr ? how.pictures.n_files() : 0) + (word.kind->table != nullptr ? 1 : 0);
}

/// Writes the views. Holds the state that the words of one export share.
struct Writer {
    const ViewExport& how;
    const std::function<void(double)>& progress;
    std::int64_t n_all;
    PictureSource source;
    std::vector<std::string> files = {};

    void written(std::string name) {
        files.push_back(std::move(name));
        if (progress) progress(static_cast<double>(files.size()) / static_cast<double>(n_all));
    }
    void draw_job(const PictureJob& job, const std::string& name) {
        const PictureKind& kind = *job.word.kind;
        try {
            for (std::string& file :
                 write_drawing(kind.draw(job), how.folder / name, how.pictures, {kind.usual}))
                written(std::move(file));
        } catch (const NoRoom& error) {
            if (how.left_out == nullptr) throw;
            const std::string fault = fmt::format("--export {}: {}", kind.name, error.what());
            if (std::ranges::find(*how.left_out, fault) == how.left_out->end())
                how.left_out->push_back(fault);  // once for all heads
        }
    }
    /// Writes the picture in the chosen formats, and the table. head: ends the name.
    void write_job(const PictureJob& job, const std::string& head) {
        const PictureKind& kind = *job.word.kind;
        const std::string name = kind.file(job) + head;
        if (kind.draw != nullptr) draw_job(job, name);
        if (kind.table == nullptr) return;
        const std::string file = name + std::string(kind.table_ending);
        const std::string table = kind.table(job);
        write_text_file(how.folder / file,
                        file.ends_with(".csv") ? with_made_by(table, how.pictures.made_by) : table);
        written(file);
    }
    void write(const ViewWord& word) {
        const ModelConfig& config = source.history->run().config;
        if (!word.kind->of_heads) return write_job(picture_job(word, source), "");
        for (const int layer : chosen_or_all(how.layers, config.n_layers))
            for (const int head : chosen_or_all(how.heads, config.n_heads)) {
                source.view.layer = layer;
                source.view.head = head;
                write_job(picture_job(word, source), fmt::format("_L{}_H{}", layer, head));
            }
    }
};

/// Returns what the views are drawn from: the shown step, the rows before it, and the colours.
PictureSource source_of(const RunHistory& history, const ViewExport& how, int stride, int dense_from) {
    PictureSource source{&history, {}, shown_lane(history, how.focus), {}};
    parse_look(how.look, source.view);
    const int last = how.row < 0 ? history.last_row() : how.row;
    source.view.row = last;
    PictureOptions& options = source.options;
    options.stride = stride;
    options.dense_from = dense_from;
    options.width = how.pictures.width;
    options.background = how.pictures.background;
    options.print = how.pictures.print;
    options.layers = how.layers;
    options.heads = how.heads;
    int first = how.all_rows ? 0 : std::min(history.n_prompt(), last);
    if (how.last_rows > 0) first = std::max(first, last + 1 - how.last_rows);
    if (first > 0) options.shown = CellRect{first, last, 0, last};
    source.view.watched = watched_span(history, source.focus.lane, how.watch);
    source.answers = how.answers;
    source.right_answer = how.right_answer;
    source.program = how.program;
    source.command = how.command;
    for (const LaneRecord& record : history.steps().back()->lanes)
        source.specs.push_back(record.info->effective);
    return source;
}

}  // namespace

ViewLimits view_limits(const RunHistory& history) {
    const ModelConfig& config = history.run().config;
    return {config.n_layers, config.n_heads, static_cast<int>(history.steps().back()->lanes.size()),
            history.steps().front()->row, history.last_row()};
}

void check_views(const std::vector<ViewWord>& words, const ViewExport& how, const ViewLimits& limits) {
    if (words.empty()) {
        if (how.row >= 0 || how.focus > 0 || !how.look.empty())
            fail(ErrorCode::wrong_use, "--row, --focus and --look are for views; name one with --export: {}",
                 view_word_list());
        return;
    }
    check_picture_width(how.pictures.width);
    check_lane("--focus", how.focus, limits);
    check_indices(how.layers, limits.n_layers, "layer");
    check_indices(how.heads, limits.n_heads, "head");
    if (how.row > limits.last_row || (how.row >= 0 && how.row < limits.first_row))
        fail(ErrorCode::wrong_use, "--row {}: the run has rows {} to {}", how.row, limits.first_row,
             limits.last_row);
    ViewState ignored;
    parse_look(how.look, ignored);
    for (const ViewWord& word : words) {
        if (word.kind->arguments == PictureArguments::two_lanes)
            for (const int lane : {word.a, word.b})
                check_lane("--export " + format_view_word(word), lane, limits);
        for (const int lane : word.lanes) check_lane("--export " + format_view_word(word), lane, limits);
        for (const int p : word.positions)
            if (p > limits.last_row)
                fail(ErrorCode::wrong_use, "--export {}: positions are 0 to {}, not {}", word.kind->name,
                     limits.last_row, p);
    }
}

ViewsSize views_size(const std::vector<ViewWord>& words, const ViewExport& how, const ViewLimits& limits) {
    PictureShape shape;
    shape.how = how.pictures;
    shape.n_positions = limits.last_row + 1;
    shape.n_steps = limits.last_row + 1 - limits.first_row;
    shape.n_rows = how.all_rows ? shape.n_positions : shape.n_steps;
    if (how.last_rows > 0) shape.n_rows = std::min<std::int64_t>(shape.n_rows, how.last_rows);
    shape.n_lanes = std::max(limits.n_lanes, 1);
    shape.n_heads = std::int64_t{limits.n_layers} * limits.n_heads;
    ViewsSize size;
    for (const ViewWord& word : words) {
        const std::int64_t n_heads = n_heads_of(word, how, limits);
        shape.n_files = n_files_of(word, how);
        size.n_files += n_heads * shape.n_files;
        size.n_bytes += n_heads * word.kind->bytes(shape);
    }
    return size;
}

void check_views_size(const std::vector<ViewWord>& words, const ViewExport& how, const ViewLimits& limits) {
    constexpr std::int64_t kMostUnasked = 64;
    if (!how.layers.empty() || !how.heads.empty()) return;
    for (const ViewWord& word : words) {
        const std::int64_t n_heads = n_heads_of(word, how, limits);
        const std::int64_t n_files = n_heads * n_files_of(word, how);
        if (n_heads > 1 && n_files > kMostUnasked)
            fail(ErrorCode::wrong_use,
                 "--export {} writes {} files, for each of {} heads; choose some with --layers and --heads, "
                 "or say --yes",
                 format_view_word(word), n_files, n_heads);
    }
}

std::vector<std::string> write_views(const RunHistory& history, const std::vector<ViewWord>& words,
                                     const ViewExport& how, int stride, int dense_from,
                                     const std::function<void(double)>& progress) {
    const ViewLimits limits = view_limits(history);
    check_views(words, how, limits);
    std::error_code ignored;
    std::filesystem::create_directories(how.folder, ignored);
    Writer writer{how, progress, std::max<std::int64_t>(views_size(words, how, limits).n_files, 1),
                  source_of(history, how, stride, dense_from)};
    for (const ViewWord& word : words) writer.write(word);
    return std::move(writer.files);
}

}  // namespace keyhole
