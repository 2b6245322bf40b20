#include "engine/trace/trace_file.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/make_folder.h"
#include "engine/base/mapped_file.h"
#include "engine/base/npy.h"
#include "engine/base/unfinished_file.h"
#include "engine/trace/run_history.h"
#include "engine/trace/spool.h"
#include "engine/trace/spool_folder.h"
#include "engine/trace/trace_json.h"
#include "engine/trace/zip_reader.h"

#include <unistd.h>
#include <zip.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <system_error>

namespace keyhole {

namespace fs = std::filesystem;

namespace {

// --- the zip ----------------------------------------------------------------------------------------

/// Writes a zip. Members come from memory, or are made while close() writes them.
class ZipWriter {
  public:
    /// Fills the empty buffer with the next part of a member; returns false at its end.
    using Next = std::function<bool(std::vector<std::byte>& buffer)>;

    /// progress: see write_trace().
    ZipWriter(fs::path path, std::function<bool(double)> report)
        : path_(std::move(path)), report_(std::move(report)) {
        int error = 0;
        zip_ = zip_open(path_.c_str(), ZIP_CREATE | ZIP_TRUNCATE, &error);
        if (!zip_) {
            zip_error_t why;
            zip_error_init_with_code(&why, error);
            const std::string text = zip_error_strerror(&why);
            zip_error_fini(&why);
            fail(ErrorCode::io, "cannot write {}: {}; check that the folder exists and is writable",
                 path_.string(), text);
        }
    }
    ~ZipWriter() {
        if (zip_) zip_discard(zip_);
    }
    ZipWriter(const ZipWriter&) = delete;
    ZipWriter& operator=(const ZipWriter&) = delete;

    void add(const std::string& name, std::vector<std::byte> bytes) {
        held_.push_back(std::move(bytes));
        add_source(name, zip_source_buffer(zip_, held_.back().data(), held_.back().size(), 0));
    }
    /// n_bytes: size of the whole member.
    void add(const std::string& name, std::int64_t n_bytes, Next next) {
        streams_.push_back(std::make_unique<Stream>(Stream{this, n_bytes, std::move(next), {}, 0, {}}));
        n_streamed_ += n_bytes;
        add_source(name, zip_source_function(zip_, &ZipWriter::serve, streams_.back().get()));
    }

    void close() {
        const int result = zip_close(zip_);
        if (fault_) std::rethrow_exception(fault_);
        if (result != 0) fail_zip();
        zip_ = nullptr;
    }

  private:
    struct Stream {
        ZipWriter* owner;
        std::int64_t n_bytes;
        Next next;
        std::vector<std::byte> buffer;
        std::size_t at;
        zip_error_t error;
    };

    /// libzip calls this; no exception may pass through it.
    static zip_int64_t serve(void* of, void* data, zip_uint64_t n, zip_source_cmd_t command) {
        Stream& stream = *static_cast<Stream*>(of);
        switch (command) {
            case ZIP_SOURCE_SUPPORTS:
                return zip_source_make_command_bitmap(ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_CLOSE,
                                                      ZIP_SOURCE_STAT, ZIP_SOURCE_ERROR, ZIP_SOURCE_FREE, -1);
            case ZIP_SOURCE_OPEN:
                zip_error_init(&stream.error);
                return 0;
            case ZIP_SOURCE_READ:
                try {
                    return stream.owner->read(stream, {static_cast<std::byte*>(data), n});
                } catch (...) {
                    stream.owner->fault_ = std::current_exception();
                    zip_error_set(&stream.error, ZIP_ER_INTERNAL, 0);
                    return -1;
                }
            case ZIP_SOURCE_STAT: {
                auto* stat = static_cast<zip_stat_t*>(data);
                zip_stat_init(stat);
                stat->size = static_cast<zip_uint64_t>(stream.n_bytes);
                stat->valid |= ZIP_STAT_SIZE;
                return sizeof *stat;
            }
            case ZIP_SOURCE_ERROR:
                return zip_error_to_data(&stream.error, data, n);
            default:
                return 0;
        }
    }
    zip_int64_t read(Stream& stream, std::span<std::byte> to) {
        std::size_t n_read = 0;
        while (n_read < to.size()) {
            if (stream.at == stream.buffer.size()) {
                stream.buffer.clear();
                stream.at = 0;
                if (!stream.next(stream.buffer)) break;
                continue;
            }
            const std::size_t n = std::min(to.size() - n_read, stream.buffer.size() - stream.at);
            std::memcpy(to.data() + n_read, stream.buffer.data() + stream.at, n);
            stream.at += n;
            n_read += n;
        }
        n_written_ += static_cast<std::int64_t>(n_read);
        if (report_ && !report_(static_cast<double>(n_written_) / static_cast<double>(n_streamed_)))
            fail(ErrorCode::cancelled, "writing {} was cancelled", path_.string());
        return static_cast<zip_int64_t>(n_read);
    }

    void add_source(const std::string& name, zip_source_t* source) {
        const zip_int64_t index = source ? zip_file_add(zip_, name.c_str(), source, ZIP_FL_ENC_UTF_8) : -1;
        if (index < 0) {
            if (source) zip_source_free(source);
            fail_zip();
        }
        // Level 1: attention is mostly noise, so more effort gains little.
        zip_set_file_compression(zip_, static_cast<zip_uint64_t>(index), ZIP_CM_DEFLATE, 1);
    }
    [[noreturn]] void fail_zip() {
        fail(ErrorCode::io, "cannot write {}: {}; check that the disk is not full", path_.string(),
             zip_strerror(zip_));
    }

    fs::path path_;
    const std::function<bool(double)> report_;
    zip_t* zip_ = nullptr;
    std::vector<std::vector<std::byte>> held_;
    std::vector<std::unique_ptr<Stream>> streams_;  // libzip keeps their addresses
    std::int64_t n_streamed_ = 0, n_written_ = 0;
    std::exception_ptr fault_;
};

/// Returns a lane of a record with only `part` of its large arrays.
using LaneOf = std::function<LaneRecord(std::size_t step, std::size_t lane, LanePart part)>;

/// Writes the arrays of one lane: small ones at once, those with values for every row while the zip is
/// closed.
class LaneArrays {
  public:
    /// history: made from the light records, which know which arrays exist. Both must outlive the zip's
    /// close().
    LaneArrays(ZipWriter& zip, const RunHistory& history, int lane, const LaneOf& whole)
        : zip_(zip), history_(history), whole_(whole), layout_(history.layout(lane)), lane_(lane) {
        const StepList& steps = history.steps();
        for (std::size_t s = 0; s < steps.size(); ++s)
            for (std::size_t i = 0; i < steps[s]->lanes.size(); ++i)
                if (steps[s]->lanes[i].info->id == history.lanes()[to_index(lane)].id)
                    places_.push_back({s, i, steps[s]->row, &steps[s]->lanes[i]});
        count_held();
        add_evictions();
        add_pins();
        add_rows();
        add_others();
    }

  private:
    /// The place of a record of the lane.
    struct Place {
        std::size_t step, index;
        int row;
        const LaneRecord* light;
    };

    std::string prefix() const { return fmt::format("lane{}/", lane_); }

    /// Counts how many tokens each KV head held at a row, without asking position by position.
    void count_held() {
        const int n_positions = history_.n_positions();
        gone_before_.resize(to_index(layout_.n_kv_heads()));
        for (int g = 0; g < layout_.n_kv_heads(); ++g) {
            std::vector<std::int32_t>& gone = gone_before_[to_index(g)];
            gone.assign(to_index(n_positions) + 1, 0);
            // A position is missing from the row after its eviction on, or from its own row on where that is
            // later.
            for (int p = 0; p < n_positions; ++p)
                if (const std::int32_t row = history_.evicted_at(lane_, g, p); row >= 0 && row < n_positions)
                    ++gone[to_index(std::max(row + 1, p))];
            std::partial_sum(gone.begin(), gone.end(), gone.begin());
        }
    }
    std::int64_t n_held(int kv_head, int row) const {
        return std::int64_t{row} + 1 - gone_before_[to_index(kv_head)][to_index(row)];
    }

    void add_evictions() {
        std::vector<std::int32_t> evictions, table;
        for (const Place& place : places_)
            for (const Eviction& e : place.light->evictions)
                evictions.insert(evictions.end(), {place.row, e.kv_head, e.position, e.row});
        for (int g = 0; g < layout_.n_kv_heads(); ++g)
            for (int p = 0; p < history_.n_positions(); ++p)
                table.push_back(history_.evicted_at(lane_, g, p));
        zip_.add(prefix() + "evicted_at.npy",
                 encode_npy(NpyType::i32, {layout_.n_kv_heads(), history_.n_positions()}, table.data()));
        zip_.add(
            prefix() + "evictions.npy",
            encode_npy(NpyType::i32, {static_cast<std::int64_t>(evictions.size() / 4), 4}, evictions.data()));
    }

    /// Writes the changes of the pins, with the rows where they changed.
    void add_pins() {
        std::vector<std::int32_t> changes;
        std::shared_ptr<const PinList> before;
        const auto report = [&](int row, const PinList* those, const PinList* others, int pinned) {
            for (const Pin& pin : those ? *those : PinList())
                if (!others || std::find(others->begin(), others->end(), pin) == others->end())
                    changes.insert(changes.end(), {row, pin.kv_head, pin.position, pinned});
        };
        for (const Place& place : places_) {
            if (place.light->pins == before) continue;
            report(place.row, before.get(), place.light->pins.get(), 0);
            report(place.row, place.light->pins.get(), before.get(), 1);
            before = place.light->pins;
        }
        if (!changes.empty())
            zip_.add(
                prefix() + "pins.npy",
                encode_npy(NpyType::i32, {static_cast<std::int64_t>(changes.size() / 4), 4}, changes.data()));
    }

    /// Writes the held values of each row that was kept, in the order of RowBlock.
    void add_rows() {
        std::vector<std::int32_t> rows;
        std::vector<float> thresholds;
        std::vector<Place> attention, scores;
        std::int64_t n_attention = 0, n_scores = 0;
        for (const Place& place : places_) {
            const RowBlock* block = place.light->rows.get();
            if (!block) continue;
            rows.push_back(place.row);
            for (int g = 0; g < layout_.n_kv_heads(); ++g) {
                const auto at = to_index(g);
                thresholds.push_back(at < block->threshold.size() ? block->threshold[at]
                                                                  : std::numeric_limits<float>::quiet_NaN());
                if (!block->scores.empty()) n_scores += n_held(g, place.row);
            }
            if (!block->scores.empty()) scores.push_back(place);
            if (block->attention.empty()) continue;
            attention.push_back(place);
            for (int i = 0; i < layout_.n_layers() * layout_.n_heads(); ++i)
                n_attention += n_held(kv_head_of(i), place.row);
        }
        const auto n_rows = static_cast<std::int64_t>(rows.size());
        zip_.add(prefix() + "rows.npy", encode_npy(NpyType::i32, {n_rows}, rows.data()));
        zip_.add(prefix() + "thresholds.npy",
                 encode_npy(NpyType::f32, {n_rows, layout_.n_kv_heads()}, thresholds.data()));
        if (!attention.empty())
            add_stream("attention.npy", NpyType::f16, {n_attention}, std::move(attention),
                       LanePart::attention, [this](const Place& place, const LaneRecord& record) {
                           const RowBlock& block = *record.rows;
                           const auto n_units = to_index(layout_.n_layers() * layout_.n_heads());
                           for (std::size_t i = 0; i < n_units; ++i)
                               check_held(place.row, kv_head_of(static_cast<int>(i)),
                                          block.head_offset[i + 1] - block.head_offset[i]);
                           return std::as_bytes(std::span(block.attention));
                       });
        if (!scores.empty())
            add_stream("scores.npy", NpyType::f32, {n_scores}, std::move(scores), LanePart::scores,
                       [this](const Place& place, const LaneRecord& record) {
                           const RowBlock& block = *record.rows;
                           for (int g = 0; g < layout_.n_kv_heads(); ++g) {
                               const auto at = to_index(g);
                               check_held(place.row, g, block.offset[at + 1] - block.offset[at]);
                           }
                           return std::as_bytes(std::span(block.scores));
                       });
    }
    int kv_head_of(int unit) const {
        return layout_.kv_head_from_head(unit / layout_.n_heads(), unit % layout_.n_heads());
    }
    void check_held(int row, int kv_head, std::int64_t n_values) const {
        if (n_values != n_held(kv_head, row))
            fail(ErrorCode::bad_file,
                 "cannot write the trace: row {} has {} values for the {} tokens that KV head {} held; "
                 "its records are damaged",
                 row, n_values, n_held(kv_head, row), kv_head);
    }

    /// Writes the shadow, and the positions that were hidden from a row.
    void add_others() {
        std::vector<std::int32_t> hidden_rows;
        std::vector<Place> hidden, shadows;
        std::int64_t width = 0;
        for (const Place& place : places_) {
            if (place.light->shadow) shadows.push_back(place);
            if (!place.light->hidden) continue;
            hidden.push_back(place);
            hidden_rows.push_back(place.row);
            const std::vector<std::int32_t>& offset = place.light->hidden->offset;
            for (std::size_t g = 0; g + 1 < offset.size(); ++g)
                width = std::max<std::int64_t>(width, offset[g + 1] - offset[g]);
        }
        const auto n_shadows = static_cast<std::int64_t>(shadows.size()),
                   n_hidden = static_cast<std::int64_t>(hidden.size());
        if (n_shadows > 0)
            add_stream("shadow.npy", NpyType::f32,
                       {n_shadows, kShadowParts.size(), layout_.n_layers(), layout_.n_heads()},
                       std::move(shadows), LanePart::others, [this](const Place&, const LaneRecord& record) {
                           line_.clear();
                           for (const auto part : kShadowParts) {
                               const auto bytes = std::as_bytes(std::span((*record.shadow).*part));
                               line_.insert(line_.end(), bytes.begin(), bytes.end());
                           }
                           return std::span<const std::byte>(line_);
                       });
        if (n_hidden == 0) return;
        zip_.add(prefix() + "hidden_rows.npy", encode_npy(NpyType::i32, {n_hidden}, hidden_rows.data()));
        add_stream("hidden.npy", NpyType::u8, {n_hidden, layout_.n_kv_heads(), width}, std::move(hidden),
                   LanePart::others, [this, width](const Place&, const LaneRecord& record) {
                       const HiddenSet& set = *record.hidden;
                       line_.assign((set.offset.size() - 1) * to_index(width), std::byte{0});
                       for (std::size_t g = 0; g + 1 < set.offset.size(); ++g)
                           std::memcpy(line_.data() + g * to_index(width), set.bits.data() + set.offset[g],
                                       to_index(set.offset[g + 1] - set.offset[g]));
                       return std::span<const std::byte>(line_);
                   });
    }

    /// bytes_of: returns the bytes of one record, valid until the next call.
    template <class BytesOf>
    void add_stream(const char* name, NpyType type, NpyShape shape, std::vector<Place> places, LanePart part,
                    BytesOf bytes_of) {
        const std::string header = npy_header(type, shape);
        const auto n_bytes = static_cast<std::int64_t>(header.size()) +
                             npy_size(shape) * static_cast<std::int64_t>(npy_type_bytes(type));
        zip_.add(prefix() + name, n_bytes,
                 [this, header, places = std::move(places), part, bytes_of,
                  next = std::size_t{0}](std::vector<std::byte>& buffer) mutable {
                     if (next > places.size()) return false;
                     std::span<const std::byte> bytes = std::as_bytes(std::span(header));
                     LaneRecord record;
                     if (next > 0) {
                         const Place& place = places[next - 1];
                         record = whole_(place.step, place.index, part);
                         bytes = bytes_of(place, record);
                     }
                     ++next;
                     buffer.assign(bytes.begin(), bytes.end());
                     return true;
                 });
    }

    ZipWriter& zip_;
    const RunHistory& history_;
    const LaneOf& whole_;
    const KvLayout& layout_;
    const int lane_;
    std::vector<Place> places_;
    std::vector<std::vector<std::int32_t>> gone_before_;  // [KV head][row] evicted before the row
    std::vector<std::byte> line_;
};

void add_prompt_rows(ZipWriter& zip, const RunInfo& run, const PromptRows& prompt,
                     const std::string& prefix) {
    const std::int32_t reduction = prompt.reduction;
    zip.add(prefix + "prompt_attention.npy",
            encode_npy(NpyType::f16, {run.layout.n_layers() * run.layout.n_heads(), prompt.size, prompt.size},
                       prompt.attention.data()));
    zip.add(prefix + "prompt_reduction.npy", encode_npy(NpyType::i32, {1}, &reduction));
}

/// light, whole: see Frames. part: the path of the file until it is complete.
void write_trace(const StepList& light, const LaneOf& whole, const fs::path& part, const fs::path& path,
                 const std::function<bool(double)>& report, const std::string& answers = {}) {
    RunHistory history;
    history.update(light);
    std::vector<std::unique_ptr<LaneArrays>> lanes;  // they exist until the zip is closed
    ZipWriter zip(part, report);
    const std::string json = format_trace_json(light, true);
    const auto bytes = std::as_bytes(std::span(json.data(), json.size()));
    zip.add("run.json", {bytes.begin(), bytes.end()});
    if (!answers.empty()) {
        const auto text = std::as_bytes(std::span(answers.data(), answers.size()));
        zip.add("answers.json", {text.begin(), text.end()});
    }
    const int n_lanes = history.empty() ? 0 : static_cast<int>(history.lanes().size());
    for (int lane = 0; lane < n_lanes; ++lane)
        lanes.push_back(std::make_unique<LaneArrays>(zip, history, lane, whole));
    if (!light.empty() && light.front()->prompt_rows)
        add_prompt_rows(zip, history.run(), *light.front()->prompt_rows, "");
    for (int lane = 0; lane < n_lanes; ++lane) {
        const LaneRecord* first = history.lane_record(history.lanes()[to_index(lane)].first_row, lane);
        if (first && first->prompt_rows)
            add_prompt_rows(zip, history.run(), *first->prompt_rows, fmt::format("lane{}/", lane));
    }
    zip.close();
    move_into_place(part, path);
}

void write_trace(const Frames& frames, const fs::path& part, const fs::path& path,
                 const std::function<bool(double)>& report = {}) {
    write_trace(
        frames.light(),
        [&](std::size_t step, std::size_t lane, LanePart large) { return frames.lane(step, lane, large); },
        part, path, report);
}

/// Returns whether a file is a trace, of any version.
bool is_trace(const fs::path& path) {
    try {
        return ZipReader(path).contains("run.json");
    } catch (const Error&) {
        return false;
    }
}

/// Returns the path to write a trace of this name to: a link's target. Throws if no file can be made there.
fs::path checked_target(const fs::path& path) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (fs::is_directory(status))
        fail(ErrorCode::wrong_use,
             "cannot save the trace as {}: it is a folder; name a file in it, FILE.keyhole", path.string());
    if (fs::exists(status) && !fs::is_regular_file(status))
        fail(ErrorCode::wrong_use,
             "cannot save the trace as {}: it is a device or a pipe, and a trace needs an ordinary file; "
             "name one, FILE.keyhole",
             path.string());
    if (fs::is_regular_file(status) && path.extension() != ".keyhole" && fs::file_size(path, error) > 0 &&
        !is_trace(path))
        fail(ErrorCode::wrong_use,
             "cannot save the trace as {}: there is a file of that name which is no trace; choose another "
             "name",
             path.string());
    const fs::path target = behind_links(path),
                   folder = target.has_parent_path() ? target.parent_path() : fs::path(".");
    if (fs::exists(folder, error) && !fs::is_directory(folder, error))
        fail(ErrorCode::io, "cannot save the trace as {}: {} is no folder; choose another place",
             path.string(), folder.string());
    if (::access(folder.c_str(), W_OK | X_OK) != 0)
        fail(ErrorCode::io, "cannot save the trace as {}: its folder {}: {}; {}", path.string(),
             folder.string(), std::strerror(errno),
             errno == ENOENT ? "make it first" : "choose one that you may write to");
    return target;
}

}  // namespace

void write_trace(const StepList& steps, const fs::path& path, const std::function<bool(double)>& report,
                 const std::string& answers) {
    const fs::path target = checked_target(path);
    const UnfinishedFile part(target);
    write_trace(
        steps, [&](std::size_t step, std::size_t lane, LanePart) { return steps[step]->lanes[lane]; },
        part.path(), target, report, answers);
}

namespace {

/// Returns FILE-recovered.keyhole, with a number if that exists: nothing is overwritten.
fs::path recovered_path(const fs::path& trace) {
    const std::string stem = trace.stem().string() + "-recovered", extension = trace.extension().string();
    fs::path free = trace;
    free.replace_filename(stem + extension);
    for (int n = 2; fs::exists(free) || fs::exists(free.string() + ".spool"); ++n)
        free.replace_filename(fmt::format("{}-{}{}", stem, n, extension));
    return free;
}

}  // namespace

TraceWriter::TraceWriter(const fs::path& path) : path_(checked_target(path)) {
    fs::path folder = path_;
    folder += ".spool";
    spool_.emplace(folder);
    // Save the spool that a crash left under this name beside the new trace. A spool that cannot be read
    // (damaged, or of another version) is moved aside unchanged.
    if (spool_->has_frames()) {
        rescued_ = recovered_path(path_);
        bool saved = false;
        try {
            const Frames frames(spool_->frames());
            saved = !frames.light().empty();
            if (saved) write_trace(frames, spool_->part(), rescued_);
        } catch (const Error& why) {
            if (why.code() != ErrorCode::bad_file) throw;
            saved = false;
        }
        if (!saved) {
            rescued_ += ".spool";
            spool_->put_aside(rescued_);
            spool_.emplace(folder);
        }
    }
    spool_->begin();
}

TraceWriter::~TraceWriter() = default;

const fs::path& TraceWriter::spool() const {
    return spool_->path();
}

bool TraceWriter::has_records() const {
    return spool_->has_frames();
}

void TraceWriter::append(const StepTrace& step) {
    spool_->append(step);
}

void TraceWriter::finish(const std::function<bool(double)>& report) {
    spool_->end();
    try {
        write_trace(Frames(spool_->frames()), spool_->part(), path_, report);
    } catch (const Error& error) {
        fail(error.code(), "{}; the run is safe in {}: `keyhole replay {}` makes the trace of it",
             error.what(), spool().string(), spool().string());
    }
    spool_->remove();
}

fs::path recover_spool(const fs::path& folder, const std::function<bool(double)>& report) {
    FoundSpool spool(folder);
    const Frames frames(spool.frames());
    if (frames.light().empty())
        fail(ErrorCode::bad_file, "{} holds no whole record; nothing can be recovered", folder.string());
    fs::path path = folder.has_filename() ? folder : folder.parent_path();
    if (path.filename() == "." || path.filename() == "..") path = fs::canonical(path);
    path.replace_extension();  // FILE.keyhole.spool -> FILE.keyhole
    if (path.extension().empty()) path += ".keyhole";
    if (fs::exists(path)) path = recovered_path(path);
    write_trace(frames, spool.part(), checked_target(path), report);
    spool.remove();
    return path;
}

}  // namespace keyhole
