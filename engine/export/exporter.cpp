#include "engine/export/exporter.h"

#include "engine/analysis/competing.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/make_folder.h"
#include "engine/base/mapped_file.h"
#include "engine/base/staged_folder.h"
#include "engine/export/animation.h"
#include "engine/export/captions.h"
#include "engine/export/export_files.h"
#include "engine/export/run_json.h"
#include "engine/export/tables.h"
#include "engine/figure/no_room.h"
#include "engine/policy/attention.h"
#include "engine/policy/calibration.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>

namespace keyhole {

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Writes one array: [rows, units, positions], where a unit is a (layer, head) or a KV head, or [rows, units,
/// head_dim]. Rows that never come are filled at the end.
class Stream {
  public:
    /// of_positions: the last extent is that of positions, and shrinks with the text.
    Stream(std::filesystem::path path, NpyType type, NpyShape shape, float absent, bool of_positions = true)
        : writer_(std::move(path), type, std::move(shape)),
          absent_(absent),
          of_positions_(of_positions),
          n_units_(npy_size(writer_.shape()) /
                   std::max<std::int64_t>(writer_.shape()[0] * writer_.shape().back(), 1)),
          written_(to_index(writer_.shape()[0] * n_units_), 0) {}

    /// values: [n_positions]. Several threads may write different lines.
    void write(std::int64_t row, std::int64_t unit, std::span<const float> values) {
        const std::int64_t line = row * n_units_ + unit;
        writer_.write(line * writer_.shape().back(), values);
        written_[to_index(line)] = 1;
    }

    /// Discards the rows from this one on.
    void cut(std::int64_t row) {
        std::fill(written_.begin() + std::min(row * n_units_, static_cast<std::int64_t>(written_.size())),
                  written_.end(), std::uint8_t{0});
        was_cut_ = true;
    }

    void finish(int n_rows, int n_positions) {
        if (absent_ != 0 || was_cut_) {
            const std::vector<float> empty(to_index(writer_.shape().back()), absent_);
            for (std::int64_t line = 0; line < n_rows * n_units_; ++line)
                if (!written_[to_index(line)]) writer_.write(line * writer_.shape().back(), empty);
        }
        NpyShape shape = writer_.shape();
        shape.front() = n_rows;
        if (of_positions_) shape.back() = n_positions;
        writer_.shrink(shape);
        writer_.close();
    }

    float absent() const { return absent_; }
    StreamedArray open() const { return {writer_.path(), writer_.type(), writer_.shape()}; }
    /// Rounds the finished array.
    void store_as_f16() const {
        std::filesystem::path rounded = writer_.path();
        rounded += ".f16";
        {
            const StreamedArray from = open();
            const std::int64_t n = writer_.shape().back();
            std::vector<float> line(to_index(n));
            NpyWriter to(rounded, NpyType::f16, writer_.shape());
            for (std::int64_t first = 0; first < npy_size(writer_.shape()); first += n) {
                from.line(first / n, line);
                to.write(first, line);
            }
            to.close();
        }
        std::filesystem::rename(rounded, writer_.path());
    }
    const std::filesystem::path& path() const { return writer_.path(); }

  private:
    NpyWriter writer_;
    float absent_;
    bool of_positions_;
    std::int64_t n_units_;
    std::vector<std::uint8_t> written_;
    bool was_cut_ = false;
};

/// The streams of one lane.
struct LaneStreams {
    int id = 0;
    int first_row = -1;  // row at which it got its id
    std::filesystem::path folder;
    KvLayout layout;
    std::vector<int> kv_heads;  // those of the export
    std::unique_ptr<Stream> attention, logits, noise, scores, shadow, q, raw_q, k, raw_k, v;
    bool has_shadow = false;              // at least one of its rows came
    std::atomic<bool> has_noise = false;  // at least one value was drawn
    std::vector<float> thresholds;        // [n_rows, n_kv_heads]
    std::vector<QueryMoments> queries;    // [n_layers, n_heads] of a prompt in one piece

    /// Returns those that tables show.
    std::vector<Stream*> table_streams() const {
        std::vector<Stream*> all{attention.get(), logits.get(), noise.get(), scores.get()};
        std::erase(all, nullptr);
        return all;
    }
    std::vector<Stream*> streams() const {
        std::vector<Stream*> all{attention.get(), logits.get(), noise.get(), scores.get(), shadow.get(),
                                 q.get(),         raw_q.get(),  k.get(),     raw_k.get(),  v.get()};
        std::erase(all, nullptr);
        return all;
    }
};

void write_next(const LaneRows& rows, const std::filesystem::path& path) {
    const ExportRange& range = rows.range();
    struct Cell {
        std::int32_t id;
        float log_prob;
    };
    static_assert(sizeof(Cell) == 8);
    std::size_t n_top = 0;
    for (const auto& step : rows.history().steps())
        for (const LaneRecord& lane : step->lanes) n_top = std::max(n_top, lane.top.size());
    std::vector<Cell> cells(to_index(range.n_rows()) * n_top, Cell{-1, kNan});
    for (int y = 0; y < range.n_rows(); ++y) {
        const LaneRecord* record = rows.has(range.first_row + y)
                                       ? rows.history().lane_record(range.first_row + y, rows.index())
                                       : nullptr;
        for (std::size_t k = 0; record && k < record->top.size(); ++k)
            cells[to_index(y) * n_top + k] = {record->top[k].id, record->top[k].log_prob};
    }
    const std::string header = npy_header("[('id', '<i4'), ('log_prob', '<f4')]",
                                          {range.n_rows(), static_cast<std::int64_t>(n_top)});
    std::vector<std::byte> bytes(header.size() + cells.size() * sizeof(Cell));
    std::memcpy(bytes.data(), header.data(), header.size());
    if (!cells.empty()) std::memcpy(bytes.data() + header.size(), cells.data(), cells.size() * sizeof(Cell));
    write_file(path, bytes);
}

/// Returns whether a lane was there when the prompt was processed.
bool is_first(const RunHistory& history, int lane) {
    const LaneRecord* record = history.lane_record(history.n_prompt() - 1, lane);
    return record != nullptr && record->info->forked_from < 0 && !record->info->replayed;
}

/// Writes choice.npy, shaped like scores.npy: the scores of the tokens that competed, NaN for all others.
void write_choice(const LaneRows& rows, const std::filesystem::path& path, NpyType type,
                  const ExportProgress& progress) {
    const ExportRange& range = rows.range();
    const RunHistory& history = rows.history();
    const auto n = to_index(range.n_positions());
    NpyWriter writer(path, type,
                     {range.n_rows(), static_cast<std::int64_t>(range.kv_heads.size()), range.n_positions()});
    std::vector<float> line(n), to(n);
    std::int64_t first = 0;
    for (int row = range.first_row; row <= range.last_row; ++row) {
        for (const int g : range.kv_heads) {
            std::fill(to.begin(), to.end(), kNan);
            if (rows.has(row) && rows.scores(row, g, line)) {
                const std::vector<Standing> standing = standings(history, rows.index(), g, row);
                const std::vector<std::int32_t> held = history.held_positions(rows.index(), g, row);
                for (std::size_t i = 0; i < standing.size(); ++i)
                    if (standing[i] == Standing::competes) to[to_index(held[i])] = line[to_index(held[i])];
            }
            writer.write(first, to);
            first += range.n_positions();
        }
        progress((row - range.first_row + 1.0) / range.n_rows());
    }
    writer.close();
}

/// Writes ideal.npy, u8, shaped like shadow.npy: 1 for positions in the ideal set of each row.
void write_ideal(const LaneRows& rows, const std::filesystem::path& path) {
    const ExportRange& range = rows.range();
    const RunHistory& history = rows.history();
    const auto n_layers = static_cast<std::int64_t>(range.layers.size()),
               n_heads = static_cast<std::int64_t>(range.heads.size());
    NpyWriter writer(path, NpyType::u8, {range.n_rows(), n_layers, n_heads, range.n_positions()});
    std::vector<float> full(to_index(range.n_positions())), line(full.size());
    std::vector<std::int32_t> ideal;
    std::int64_t first = 0;
    for (int row = range.first_row; row <= range.last_row; ++row) {
        // Prompt rows use the policy that the run began with.
        const LaneRecord* record =
            rows.has(row) ? history.lane_record(std::max(row, history.n_prompt() - 1), rows.index())
                          : nullptr;
        const bool measured = record != nullptr && (row < history.n_prompt() || record->shadow != nullptr);
        for (const int layer : range.layers)
            for (const int head : range.heads) {
                if (measured && rows.shadow(row, layer, head, full)) {
                    ideal_set(std::span(full).first(to_index(row + 1)),
                              record->info->policy.at(layer, head).budget, ideal);
                    std::fill(line.begin(), line.end(), 0.0f);
                    for (const std::int32_t p : ideal) line[to_index(p)] = 1;
                    writer.write(first, line);
                }
                first += range.n_positions();
            }
    }
    writer.close();
}

void write_evicted_at(const LaneRows& rows, const std::filesystem::path& path) {
    const int n_kv_heads = rows.layout().n_kv_heads(), n_positions = rows.range().n_positions();
    std::vector<std::int32_t> table;
    for (int g = 0; g < n_kv_heads; ++g)
        for (int p = 0; p < n_positions; ++p) table.push_back(rows.history().evicted_at(rows.index(), g, p));
    write_file(path, encode_npy(NpyType::i32, {n_kv_heads, n_positions}, table.data()));
}

using Progress = ExportSink::Progress;

/// Writes everything of a lane that is made after the run. left_out: gets a line for each part that did not
/// fit.
void write_lane(const LaneRows& rows, const std::vector<float>& thresholds, const ExportOptions& options,
                const std::filesystem::path& folder, const Progress& progress,
                std::vector<std::string>& left_out) {
    struct Part {
        bool wanted;
        const char* name;
        std::function<void(const ExportProgress&)> write;
    };
    const std::vector<Part> parts = {
        {options.mask || options.mask_table, "mask-table",
         [&](const ExportProgress&) { write_evicted_at(rows, folder / "evicted_at.npy"); }},
        {options.mask, "mask",
         [&](const ExportProgress& p) { write_masks(rows, options.pictures, folder, p); }},
        {options.heatmap, "heatmap",
         [&](const ExportProgress& p) { write_heatmaps(rows, options.pictures, folder, p); }},
        {options.frames, "frames",
         [&](const ExportProgress& p) { write_mask_frames(rows, options.pictures, folder / "frames", p); }},
        {options.gif, "gif",
         [&](const ExportProgress& p) { write_mask_gif(rows, options.pictures, folder, p); }},
        {options.gif_attention, "gif-attention",
         [&](const ExportProgress& p) { write_attention_gifs(rows, options.pictures, folder, p); }},
        {options.gif_mask, "gif-mask",
         [&](const ExportProgress& p) { write_head_mask_gifs(rows, options.pictures, folder, p); }},
        {options.gif_scores, "gif-scores",
         [&](const ExportProgress& p) { write_score_gifs(rows, options.pictures, folder, p); }},
        {options.scores, "scores",
         [&](const ExportProgress& p) { write_score_curves(rows, thresholds, options.pictures, folder, p); }},
        {options.choice, "choice",
         [&](const ExportProgress& p) {
             write_choice(rows, folder / "choice.npy", options.f16 ? NpyType::f16 : NpyType::f32, p);
         }},
        {options.next, "next", [&](const ExportProgress&) { write_next(rows, folder / "next.npy"); }},
        {options.csv, "csv",
         [&](const ExportProgress& p) {
             write_metrics_table(rows, folder / "metrics.csv", options.pictures.made_by);
             write_table(rows, TableFormat::csv, folder / "rows.csv", options.pictures.made_by, p);
         }},
        {rows.arrays().shadow.has_value(), "shadow",
         [&](const ExportProgress&) { write_ideal(rows, folder / "ideal.npy"); }},
        {options.json, "json", [&](const ExportProgress& p) {
             write_table(rows, TableFormat::json, folder / "rows.json", options.pictures.made_by, p);
         }}};
    double n = 0, done = 0;
    for (const Part& part : parts) n += part.wanted;
    for (const Part& part : parts) {
        if (!part.wanted) continue;
        const std::string what = fmt::format("lane {}: {}", rows.index(), part.name);
        try {
            part.write([&](double share) {
                if (progress) progress((done + share) / n, what);
            });
        } catch (const NoRoom& error) {
            if (!options.leaves_out) throw;
            left_out.push_back(fmt::format("{}: {}", what, error.what()));
        }
        ++done;
    }
}

}  // namespace

struct ExportSink::Impl final : PrefillSink {
    ExportOptions options;
    ExportShape shape;
    ExportRange range;
    std::vector<std::string> left_out;
    std::optional<StagedFolder> staged;  // the folder of the options; made before the streams below it
    std::vector<std::string> replaced;   // files of the export before
    std::vector<std::unique_ptr<LaneStreams>> lanes;  // in order of appearance
    /// By row and lane id. A recorder's budget may drop the records' shadows before the tables are written.
    /// These copies take a fraction of the memory that the lanes need for their shadows anyway.
    std::map<std::pair<int, int>, std::shared_ptr<const ShadowRow>> shadows;

    Impl(ExportOptions o, ExportShape s)
        : options(std::move(o)), shape(std::move(s)), range(export_range(options, shape)) {
        check_export_size(options, shape);
        staged.emplace(options.folder);
        replaced = files_of_export(staged->folder());
        staged->check_way(sure_files(), replaced);
        for (std::size_t i = 0; i < to_index(shape.n_lanes); ++i)
            add_lane(i < shape.of_lane.size() ? shape.of_lane[i] : shape.layout);
    }

    /// Returns the arrays and tables that every lane of the start will have.
    std::vector<std::string> sure_files() const {
        const ExportOptions& o = options;
        std::vector<std::string> names;
        for (const auto& [wanted, name] :
             std::initializer_list<std::pair<bool, const char*>>{{o.attention, "attention.npy"},
                                                                 {o.logits, "logits.npy"},
                                                                 {o.scores, "scores.npy"},
                                                                 {o.mask || o.mask_table, "evicted_at.npy"},
                                                                 {o.choice, "choice.npy"},
                                                                 {o.next, "next.npy"},
                                                                 {o.csv, "metrics.csv"},
                                                                 {o.csv, "rows.csv"},
                                                                 {o.json, "rows.json"},
                                                                 {o.gif, "mask.gif"}})
            for (int lane = 0; wanted && lane < shape.n_lanes; ++lane)
                names.push_back(fmt::format("lane{}/{}", lane, name));
        return names;
    }

    bool has_tables() const { return options.csv || options.json; }
    NpyType array_type() const { return options.f16 ? NpyType::f16 : NpyType::f32; }
    /// Returns the type of arrays that tables show, while these are not written: only arrays are rounded.
    NpyType table_type() const { return has_tables() ? NpyType::f32 : array_type(); }

    std::unique_ptr<Stream> open_inputs(const LaneStreams& lane, bool wanted, const char* name,
                                        NpyShape heads) const {
        if (!wanted) return nullptr;
        heads.insert(heads.begin(), range.n_rows());
        heads.push_back(shape.head_dim);
        return std::make_unique<Stream>(lane.folder / name, array_type(), std::move(heads), kNan, false);
    }

    /// Opens the arrays of keys and values, which have the lane's KV heads.
    void open_kv(LaneStreams& lane) const {
        const NpyShape heads = {static_cast<std::int64_t>(lane.kv_heads.size())};
        lane.k.reset();
        lane.raw_k.reset();
        lane.v.reset();
        lane.k = open_inputs(lane, options.k, "k.npy", heads);
        lane.raw_k = open_inputs(lane, options.k, "k0.npy", heads);
        lane.v = open_inputs(lane, options.v, "v.npy", heads);
    }

    void open_scores(LaneStreams& lane, const KvLayout& layout) {
        lane.layout = layout;
        lane.kv_heads = kv_heads_read(layout, range.layers, range.heads);
        open_kv(lane);
        lane.scores.reset();
        if (!options.streams_scores()) return;
        const auto n = static_cast<std::int64_t>(lane.kv_heads.size());
        lane.scores = std::make_unique<Stream>(lane.folder / "scores.npy", table_type(),
                                               NpyShape{range.n_rows(), n, range.n_positions()}, kNan);
        lane.thresholds.assign(to_index(range.n_rows()) * to_index(layout.n_kv_heads()), kNan);
    }

    void add_lane(const KvLayout& layout) {
        auto lane = std::make_unique<LaneStreams>();
        lane->id = -1;
        lane->folder = staged->path() / fmt::format("lane{}", lanes.size());
        make_folder(lane->folder);
        const NpyShape heads = {range.n_rows(), static_cast<std::int64_t>(range.layers.size()),
                                static_cast<std::int64_t>(range.heads.size()), range.n_positions()};
        const auto open = [&](bool wanted, const char* name, const NpyShape& array, float absent,
                              NpyType type) {
            return wanted ? std::make_unique<Stream>(lane->folder / name, type, array, absent) : nullptr;
        };
        lane->attention = open(options.streams_attention(), "attention.npy", heads, 0, table_type());
        lane->logits = open(options.logits, "logits.npy", heads, kNan, table_type());
        lane->noise = open(options.noise, "noise.npy", heads, kNan, table_type());
        lane->shadow = open(options.shadow, "shadow.npy", heads, 0, array_type());
        const NpyShape queries = {heads[1], heads[2]};
        lane->q = open_inputs(*lane, options.q, "q.npy", queries);
        lane->raw_q = open_inputs(*lane, options.q, "q0.npy", queries);
        open_scores(*lane, layout);
        lanes.push_back(std::move(lane));
    }

    /// Removes the files of a lane that belongs to a branch that is not shown.
    static void remove_lane(const LaneStreams& lane) {
        std::error_code ignored;
        for (Stream* stream : lane.streams()) std::filesystem::remove(stream->path(), ignored);
        std::filesystem::remove(lane.folder, ignored);
    }

    /// Returns the streams of a lane. Ids are bound to folders in the order in which records show them, as
    /// RunHistory numbers its lanes.
    LaneStreams& lane_of(const StepTrace& step, int index) {
        for (const LaneRecord& record : step.lanes) {
            const int id = record.info->id;
            if (std::any_of(lanes.begin(), lanes.end(), [&](const auto& lane) { return lane->id == id; }))
                continue;
            auto place =
                std::find_if(lanes.begin(), lanes.end(), [](const auto& lane) { return lane->id < 0; });
            const KvLayout& layout = record.info->layout != nullptr ? *record.info->layout : shape.layout;
            if (place == lanes.end()) {
                add_lane(layout);
                place = lanes.end() - 1;
            }
            LaneStreams& lane = **place;
            if (!(lane.layout == layout)) open_scores(lane, layout);
            lane.id = id;
            lane.first_row = step.row;
        }
        const int id = step.lanes[to_index(index)].info->id;
        return **std::find_if(lanes.begin(), lanes.end(), [&](const auto& lane) { return lane->id == id; });
    }

    /// Discards later rows. Lanes that came after the row give up their folders.
    void rewind(int row) {
        const std::int64_t first_void = std::max(0, row + 1 - range.first_row);
        shadows.erase(shadows.lower_bound({row + 1, 0}), shadows.end());
        for (auto& lane : lanes) {
            if (lane->first_row > row) lane->id = lane->first_row = -1;
            for (Stream* stream : lane->streams()) stream->cut(first_void);
            const auto from =
                std::min(to_index(first_void) * to_index(lane->layout.n_kv_heads()), lane->thresholds.size());
            std::fill(lane->thresholds.begin() + static_cast<std::ptrdiff_t>(from), lane->thresholds.end(),
                      kNan);
        }
    }

    void write_heads(const KvLayout& layout, Stream& stream, int row, const RowValues& values,
                     const std::vector<float>& data) {
        std::vector<float> line(to_index(range.n_positions()));
        for (std::size_t l = 0; l < range.layers.size(); ++l)
            for (std::size_t h = 0; h < range.heads.size(); ++h) {
                const int g = layout.kv_head_from_head(range.layers[l], range.heads[h]);
                std::int64_t from =
                    values.head_offset[to_index(range.layers[l] * shape.layout.n_heads() + range.heads[h])];
                scatter(values, g, data, from, stream.absent(), line);
                stream.write(row - range.first_row, static_cast<std::int64_t>(l * range.heads.size() + h),
                             line);
            }
    }

    void write_inputs(LaneStreams& lane, int row, const RowInputs& inputs) {
        const std::int64_t at = row - range.first_row;
        const std::size_t d = to_index(shape.head_dim);
        const auto write = [&](const std::unique_ptr<Stream>& to, const std::vector<float>& from, int head,
                               std::int64_t unit) {
            if (to && !from.empty()) to->write(at, unit, std::span(from).subspan(to_index(head) * d, d));
        };
        std::int64_t unit = 0;
        for (const int layer : range.layers)
            for (const int h : range.heads) {
                const int head = layer * shape.layout.n_heads() + h;
                write(lane.q, inputs.q, head, unit);
                write(lane.raw_q, inputs.raw_q, head, unit++);
            }
        for (std::size_t i = 0; i < lane.kv_heads.size(); ++i) {
            const auto of_head = static_cast<std::int64_t>(i);
            write(lane.k, inputs.k, lane.kv_heads[i], of_head);
            write(lane.raw_k, inputs.raw_k, lane.kv_heads[i], of_head);
            write(lane.v, inputs.v, lane.kv_heads[i], of_head);
        }
    }

    /// full: [n_layers * n_heads, row + 1]
    void write_shadow(LaneStreams& lane, int row, const std::vector<float>& full) {
        std::vector<float> line(to_index(range.n_positions()), lane.shadow->absent());
        const std::int64_t n = row + 1;
        for (std::size_t l = 0; l < range.layers.size(); ++l)
            for (std::size_t h = 0; h < range.heads.size(); ++h) {
                const int head = range.layers[l] * shape.layout.n_heads() + range.heads[h];
                std::copy_n(full.begin() + head * n, n, line.begin());
                lane.shadow->write(row - range.first_row,
                                   static_cast<std::int64_t>(l * range.heads.size() + h), line);
            }
        lane.has_shadow = true;
    }

    static void scatter(const RowValues& values, int g, const std::vector<float>& data, std::int64_t from,
                        float absent, std::vector<float>& line) {
        std::fill(line.begin(), line.end(), absent);
        for (auto i = to_index(values.offset[to_index(g)]); i < to_index(values.offset[to_index(g) + 1]); ++i)
            line[to_index(values.positions[i])] = data[to_index(from++)];
    }

    void row(const StepTrace& step, int index, const RowOutput& out) {
        const LaneRecord& record = step.lanes[to_index(index)];
        if (record.shadow) shadows[{step.row, record.info->id}] = record.shadow;
        LaneStreams& lane = lane_of(step, index);  // of all rows, since it numbers the lanes
        if (step.row < range.first_row || step.row > range.last_row) return;
        const RowValues& values = out.values;
        if (values.offset.empty()) return;
        if (lane.attention && !values.attention.empty())
            write_heads(lane.layout, *lane.attention, step.row, values, values.attention);
        if (lane.logits && !values.logits.empty())
            write_heads(lane.layout, *lane.logits, step.row, values, values.logits);
        if (lane.noise && !values.noise.empty()) {
            write_heads(lane.layout, *lane.noise, step.row, values, values.noise);
            if (std::any_of(values.noise.begin(), values.noise.end(),
                            [](float value) { return !std::isnan(value); }))
                lane.has_noise = true;
        }
        write_inputs(lane, step.row, out.inputs);
        if (lane.shadow && !values.shadow.empty()) write_shadow(lane, step.row, values.shadow);
        if (!lane.scores || values.scores.empty()) return;
        std::vector<float> line(to_index(range.n_positions()));
        for (std::size_t i = 0; i < lane.kv_heads.size(); ++i) {
            const int g = lane.kv_heads[i];
            scatter(values, g, values.scores, values.offset[to_index(g)], kNan, line);
            lane.scores->write(step.row - range.first_row, static_cast<std::int64_t>(i), line);
        }
        std::copy(
            values.threshold.begin(), values.threshold.end(),
            lane.thresholds.begin() + std::int64_t{step.row - range.first_row} * lane.layout.n_kv_heads());
    }

    // Prompt rows.
    RowRequest requested() const override {
        if (options.all_rows) return options.requested();
        RowRequest of_queries;
        of_queries.inputs = true;
        return of_queries;
    }
    void attention(const PrefillTile& tile) override {
        each_lane(tile, &LaneStreams::attention, head_unit(tile));
        each_lane(tile, &LaneStreams::shadow, head_unit(tile));  // nothing was evicted yet
    }
    void logits(const PrefillTile& tile) override { each_lane(tile, &LaneStreams::logits, head_unit(tile)); }
    void noise(const PrefillTile& tile) override {
        each_lane(tile, &LaneStreams::noise, head_unit(tile));
        const auto drawn = [&](int row) {
            const float* begin = tile.values + std::int64_t{row} * tile.n_columns;
            return std::any_of(begin, begin + tile.first_row + row + 1,
                               [](float value) { return !std::isnan(value); });
        };
        bool any = false;
        for (int row = 0; row < tile.n_rows && !any; ++row) any = drawn(row);
        if (!any) return;
        for (std::size_t i = 0; i < lanes.size(); ++i)
            if (tile.lane < 0 || to_index(tile.lane) == i) lanes[i]->has_noise = true;
    }
    void scores(const PrefillTile& tile) override {
        for (std::size_t i = 0; i < lanes.size(); ++i) {
            if ((tile.lane >= 0 && to_index(tile.lane) != i) || !lanes[i]->scores) continue;
            const int g = lanes[i]->layout.first_of_layer(tile.layer) + tile.head;
            if (const std::int64_t unit = place(lanes[i]->kv_heads, g); unit >= 0)
                write_tile(*lanes[i]->scores, tile, unit);
        }
    }

    /// Takes what a head's queries of the prompt are like, but for those of its first tokens, which differ.
    static void add_queries(LaneStreams& lane, const InputTile& tile) {
        constexpr int kFirst = 4;
        std::vector<const float*> rows;
        for (int row = kFirst; row < tile.n_rows; ++row) rows.push_back(tile.values + row * tile.stride);
        lane.queries.resize(to_index(lane.layout.n_layers() * lane.layout.n_heads()));
        lane.queries[to_index(tile.layer * lane.layout.n_heads() + tile.head)] =
            query_moments(rows, tile.head_dim, tile.rotary);
    }

    void inputs(const InputTile& tile) override {
        const bool of_query = tile.kind == InputKind::q || tile.kind == InputKind::raw_q;
        for (std::size_t i = 0; i < lanes.size(); ++i) {
            if (tile.lane >= 0 && to_index(tile.lane) != i) continue;
            LaneStreams& lane = *lanes[i];
            if (options.queries && tile.kind == InputKind::raw_q) add_queries(lane, tile);
            const std::unique_ptr<Stream>& to = tile.kind == InputKind::q       ? lane.q
                                                : tile.kind == InputKind::raw_q ? lane.raw_q
                                                : tile.kind == InputKind::k     ? lane.k
                                                : tile.kind == InputKind::raw_k ? lane.raw_k
                                                                                : lane.v;
            const std::int64_t unit =
                of_query ? unit_of(tile.layer, tile.head)
                         : place(lane.kv_heads, lane.layout.first_of_layer(tile.layer) + tile.head);
            if (!to || unit < 0) continue;
            for (int row = range.first_row; row < std::min(tile.n_rows, range.last_row + 1); ++row)
                to->write(row - range.first_row, unit,
                          {tile.values + row * tile.stride, to_index(tile.head_dim)});
        }
    }

    static std::int64_t place(const std::vector<int>& list, int value) {
        const auto it = std::find(list.begin(), list.end(), value);
        return it == list.end() ? -1 : it - list.begin();
    }
    std::int64_t head_unit(const PrefillTile& tile) const { return unit_of(tile.layer, tile.head); }
    std::int64_t unit_of(int layer, int head) const {
        const std::int64_t l = place(range.layers, layer), h = place(range.heads, head);
        return l < 0 || h < 0 ? -1 : l * static_cast<std::int64_t>(range.heads.size()) + h;
    }
    void each_lane(const PrefillTile& tile, std::unique_ptr<Stream> LaneStreams::*stream, std::int64_t unit) {
        if (unit < 0) return;
        for (std::size_t i = 0; i < lanes.size(); ++i)
            if ((tile.lane < 0 || to_index(tile.lane) == i) && (*lanes[i]).*stream)
                write_tile(*((*lanes[i]).*stream), tile, unit);
    }
    void write_tile(Stream& stream, const PrefillTile& tile, std::int64_t unit) {
        std::vector<float> line(to_index(range.n_positions()));
        for (int i = 0; i < tile.n_rows; ++i) {
            const int row = tile.first_row + i;
            if (row < range.first_row || row > range.last_row) continue;
            std::fill(line.begin(), line.end(), stream.absent());
            std::copy_n(tile.values + std::int64_t{i} * tile.n_columns, row + 1, line.begin());
            stream.write(row - range.first_row, unit, line);
        }
    }

    /// Returns the history with the shadows that its records came with.
    RunHistory with_shadows(const RunHistory& history) const {
        StepList steps;
        for (const auto& step : history.steps()) {
            auto whole = std::make_shared<StepTrace>(*step);
            for (LaneRecord& lane : whole->lanes)
                if (const auto it = shadows.find({step->row, lane.info->id}); it != shadows.end())
                    lane.shadow = it->second;
            steps.push_back(std::move(whole));
        }
        RunHistory out = history;
        out.update(steps);
        return out;
    }

    /// Returns the range where it is not all layers and heads.
    std::optional<ExportRange> part() const {
        const bool is_whole = static_cast<int>(range.layers.size()) == shape.layout.n_layers() &&
                              static_cast<int>(range.heads.size()) == shape.layout.n_heads();
        return is_whole ? std::nullopt : std::optional(range);
    }

    /// Returns whether lanes have files; views of `more` and run.json are no such.
    bool has_lane_files() const {
        ExportOptions of_lanes = options;
        of_lanes.more_files = 0;
        return estimate_files(of_lanes, shape) > 1;
    }

    void finish(const RunHistory& recorded, const Progress& all, const More& more) {
        KH_ASSERT(!recorded.empty());
        const double share_of_lanes = !more ? 1 : has_lane_files() ? 0.5 : 0;
        const Progress progress = [&](double done, const std::string& what) {
            if (all) all(share_of_lanes * done, what);
        };
        std::optional<RunHistory> whole;
        if (!shadows.empty()) whole = with_shadows(recorded);
        const RunHistory& history = whole ? *whole : recorded;
        range.last_row = std::min(range.last_row, history.last_row());
        range.first_row = std::min(range.first_row, range.last_row + 1);
        for (auto& lane : lanes)
            for (Stream* stream : lane->streams()) stream->finish(range.n_rows(), range.n_positions());
        options.pictures.made_by = made_by(history.run(), options.program, options.command);
        const std::size_t n = std::min(lanes.size(), history.lanes().size());
        for (std::size_t i = n; i < lanes.size(); ++i) remove_lane(*lanes[i]);
        for (std::size_t i = 0; i < n; ++i) {
            LaneArrays arrays;
            const auto open = [&](const std::unique_ptr<Stream>& from, std::optional<StreamedArray>& to) {
                if (from) to.emplace(from->open());
            };
            open(lanes[i]->attention, arrays.attention);
            open(lanes[i]->logits, arrays.logits);
            if (lanes[i]->has_noise)
                open(lanes[i]->noise, arrays.noise);
            else if (lanes[i]->noise)
                std::filesystem::remove(lanes[i]->noise->path());
            open(lanes[i]->scores, arrays.scores);
            if (lanes[i]->has_shadow)
                open(lanes[i]->shadow, arrays.shadow);
            else if (lanes[i]->shadow)
                std::filesystem::remove(lanes[i]->shadow->path());
            ExportRange of_lane = range;
            of_lane.kv_heads = lanes[i]->kv_heads;
            write_lane(
                LaneRows(history, static_cast<int>(i), of_lane, std::move(arrays)), lanes[i]->thresholds,
                options, lanes[i]->folder,
                [&](double share, const std::string& what) {
                    progress((static_cast<double>(i) + share) / static_cast<double>(n), what);
                },
                left_out);
            if (options.f16 && has_tables())
                for (const Stream* stream : lanes[i]->table_streams())
                    if (std::filesystem::exists(stream->path())) stream->store_as_f16();
            if (const auto& queries = lanes[i]->queries; !queries.empty() && queries.front().n > 0)
                write_calibration(lanes[i]->folder / "queries.safetensors", shape.layout.n_layers(),
                                  shape.layout.n_heads(), queries);
            else if (options.queries)
                left_out.push_back(fmt::format(
                    "lane {}: no queries.safetensors: {}", i,
                    is_first(history, static_cast<int>(i))
                        ? "its prompt is too short, or was read token by token"
                        : "it joined after the prompt, and only the prompt's own pass is summed"));
            // Remove files that only tables and animations needed.
            if (lanes[i]->attention && !options.attention)
                std::filesystem::remove(lanes[i]->attention->path());
            if (lanes[i]->scores && !options.scores) std::filesystem::remove(lanes[i]->scores->path());
        }
        if (more)
            more(staged->path(), [&](double done, const std::string& what) {
                if (all) all(share_of_lanes + (1 - share_of_lanes) * done, what);
            });
        ExportAbout about{options.program, options.command, staged->files(), options.run, part()};
        about.files.emplace_back(kRunJsonName);
        std::sort(about.files.begin(), about.files.end());
        write_text_file(staged->path() / kRunJsonName, make_run_json(history, range.first_row, about));
        if (all) all(1, "done");
        staged->publish(replaced, kRunJsonName);
    }
};

ExportSink::ExportSink(ExportOptions options, ExportShape shape)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(shape))) {}
ExportSink::~ExportSink() = default;

const std::vector<std::string>& ExportSink::left_out() const {
    return impl_->left_out;
}

PrefillSink* ExportSink::prefill() {
    const ExportOptions& options = impl_->options;
    return (options.all_rows && options.streams()) || options.queries ? impl_.get() : nullptr;
}

void ExportSink::row(const StepTrace& step, int lane, const RowOutput& out) {
    impl_->row(step, lane, out);
}

void ExportSink::rewind(int row) {
    impl_->rewind(row);
}

void ExportSink::finish(const RunHistory& history, const Progress& progress, const More& more) {
    impl_->finish(history, progress, more);
}

std::int64_t ExportSink::estimated_bytes() const {
    return estimate_bytes(impl_->options, impl_->shape);
}

std::int64_t ExportSink::estimated_files() const {
    return estimate_files(impl_->options, impl_->shape);
}

ExportShape export_shape(const RunHistory& history) {
    ExportShape shape{history.run().layout,
                      history.n_prompt(),
                      static_cast<int>(history.lanes().size()),
                      history.last_row(),
                      {},
                      history.run().config.head_dim};
    for (int lane = 0; lane < shape.n_lanes; ++lane) shape.of_lane.push_back(history.layout(lane));
    return shape;
}

std::vector<std::string> export_history(const RunHistory& history, ExportOptions options,
                                        const ExportSink::Progress& progress, const ExportSink::More& more) {
    check_of_records(options);
    ExportSink sink(options, export_shape(history));
    // Feed the records as if they were new. The shape already lists all lanes of the run, in order.
    std::vector<float> line(to_index(history.n_positions()));
    for (const auto& step : history.steps()) {
        for (std::size_t i = 0; i < step->lanes.size(); ++i) {
            const int lane = *history.lane_from_id(step->lanes[i].info->id);
            const KvLayout& layout = history.layout(lane);
            const auto& block = step->lanes[i].rows;
            if (!block) continue;
            RowOutput out;
            RowValues& values = out.values;
            values.offset = block->offset;
            values.head_offset = block->head_offset;
            values.scores.assign(block->scores.begin(), block->scores.end());
            values.threshold = block->threshold;
            for (int g = 0; g < layout.n_kv_heads(); ++g)
                for (std::int32_t p : history.held_positions(lane, g, step->row))
                    values.positions.push_back(p);
            values.attention.resize(block->attention.size());
            for (int l = 0; !block->attention.empty() && l < layout.n_layers(); ++l)
                for (int h = 0; h < layout.n_heads(); ++h) {
                    const int g = layout.kv_head_from_head(l, h);
                    history.attention_row(lane, step->row, l, h, line);
                    auto to = to_index(block->head_offset[to_index(l * layout.n_heads() + h)]);
                    for (auto k = to_index(block->offset[to_index(g)]);
                         k < to_index(block->offset[to_index(g) + 1]); ++k)
                        values.attention[to++] = line[to_index(values.positions[k])];
                }
            sink.row(*step, static_cast<int>(i), out);
        }
    }
    sink.finish(history, progress, more);
    return sink.left_out();
}

}  // namespace keyhole
