#include "engine/trace/trace_file.h"

#include "engine/base/error.h"
#include "engine/base/half.h"
#include "engine/base/mapped_file.h"
#include "engine/base/npy.h"
#include "engine/trace/run_history.h"
#include "engine/trace/spool.h"
#include "engine/trace/trace_json.h"

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
#include <optional>
#include <system_error>

namespace keyhole {

namespace fs = std::filesystem;

namespace {

constexpr const char* kFrames = "frames.bin";

[[noreturn]] void fail_io(const fs::path& path, const char* what) {
    fail(ErrorCode::io, "cannot {} {}: {}; check that the folder is writable and not full", what,
         path.string(), std::strerror(errno));
}

// --- the zip ------------------------------------------------------------------------------------------------------------

/// A zip being written. Members from memory or files, which must stay until close().
class ZipWriter {
  public:
    explicit ZipWriter(fs::path path) : path_(std::move(path)) {
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
    void add_file(const std::string& name, const fs::path& file) {
        add_source(name, zip_source_file(zip_, file.c_str(), 0, -1));
    }

    void close() {
        if (zip_close(zip_) != 0) fail_zip();
        zip_ = nullptr;
    }

  private:
    void add_source(const std::string& name, zip_source_t* source) {
        const zip_int64_t index = source ? zip_file_add(zip_, name.c_str(), source, ZIP_FL_ENC_UTF_8) : -1;
        if (index < 0) {
            if (source) zip_source_free(source);
            fail_zip();
        }
        // Level 1: attention is mostly zeros and noise, more effort gains little.
        zip_set_file_compression(zip_, static_cast<zip_uint64_t>(index), ZIP_CM_DEFLATE, 1);
    }
    [[noreturn]] void fail_zip() {
        fail(ErrorCode::io, "cannot write {}: {}; check that the disk is not full", path_.string(),
             zip_strerror(zip_));
    }

    fs::path path_;
    zip_t* zip_ = nullptr;
    std::vector<std::vector<std::byte>> held_;
};

/// A folder that goes away with its contents.
class ScratchFolder {
  public:
    explicit ScratchFolder(fs::path path) : path_(std::move(path)) {
        std::error_code error;
        fs::create_directories(path_, error);
        if (error) fail(ErrorCode::io, "cannot create {}: {}", path_.string(), error.message());
    }
    ~ScratchFolder() {
        std::error_code error;
        fs::remove_all(path_, error);
    }
    const fs::path& path() const { return path_; }

  private:
    fs::path path_;
};

/// The arrays of one lane: small ones at once, those with values of every row as the records come by.
class LaneArrays {
  public:
    /// history: of the light records, which say what there is.
    LaneArrays(ZipWriter& zip, const RunHistory& history, int lane, fs::path scratch)
        : zip_(zip),
          history_(history),
          layout_(history.layout(lane)),
          lane_(lane),
          scratch_(std::move(scratch)) {
        add_evictions();
        add_pins();
        open_rows();
    }

    /// A whole record of the lane, in ascending rows.
    void add(int row, const LaneRecord& record) {
        if (record.rows) add_rows(row, *record.rows);
        for (std::size_t i = 0; record.shadow && i < kShadowParts.size(); ++i) {
            const std::vector<float>& part = (*record.shadow).*kShadowParts[i];
            shadow_->write(shadow_at_, part);
            shadow_at_ += static_cast<std::int64_t>(part.size());
        }
        if (record.hidden) add_hidden(*record.hidden);
    }
    void close() {
        for (const auto& [name, writer] : {std::pair("attention.npy", &attention_),
                                           {"scores.npy", &scores_},
                                           {"shadow.npy", &shadow_},
                                           {"hidden.npy", &hidden_}}) {
            if (!*writer) continue;
            (*writer)->close();
            zip_.add_file(prefix() + name, (*writer)->path());
        }
    }

  private:
    std::string prefix() const { return fmt::format("lane{}/", lane_); }

    void add_evictions() {
        std::vector<std::int32_t> evictions, table;
        for (const auto& step : history_.steps())
            if (const LaneRecord* record = history_.lane_record(step->row, lane_))
                for (const Eviction& e : record->evictions)
                    evictions.insert(evictions.end(), {step->row, e.kv_head, e.position, e.row});
        for (int g = 0; g < layout_.n_kv_heads(); ++g)
            for (int p = 0; p < history_.n_positions(); ++p)
                table.push_back(history_.evicted_at(lane_, g, p));
        zip_.add(prefix() + "evicted_at.npy",
                 encode_npy(NpyType::i32, {layout_.n_kv_heads(), history_.n_positions()}, table.data()));
        zip_.add(
            prefix() + "evictions.npy",
            encode_npy(NpyType::i32, {static_cast<std::int64_t>(evictions.size() / 4), 4}, evictions.data()));
    }

    /// What the pins became at the rows where they changed.
    void add_pins() {
        std::vector<std::int32_t> changes;
        std::shared_ptr<const PinList> before;
        const auto tell = [&](int row, const PinList* those, const PinList* others, int pinned) {
            for (const Pin& pin : those ? *those : PinList())
                if (!others || std::find(others->begin(), others->end(), pin) == others->end())
                    changes.insert(changes.end(), {row, pin.kv_head, pin.position, pinned});
        };
        for (const auto& step : history_.steps()) {
            const LaneRecord* record = history_.lane_record(step->row, lane_);
            if (!record || record->pins == before) continue;
            tell(step->row, before.get(), record->pins.get(), 0);
            tell(step->row, record->pins.get(), before.get(), 1);
            before = record->pins;
        }
        if (!changes.empty())
            zip_.add(
                prefix() + "pins.npy",
                encode_npy(NpyType::i32, {static_cast<std::int64_t>(changes.size() / 4), 4}, changes.data()));
    }

    void open_rows() {
        std::vector<std::int32_t> rows, hidden_rows;
        std::vector<float> thresholds;
        std::int64_t n_shadows = 0;
        bool attention = false, scores = false;
        for (const auto& step : history_.steps()) {
            const LaneRecord* record = history_.lane_record(step->row, lane_);
            if (!record) continue;
            n_shadows += record->shadow ? 1 : 0;
            if (record->hidden) {
                hidden_rows.push_back(step->row);
                const std::vector<std::int32_t>& offset = record->hidden->offset;
                for (std::size_t g = 0; g + 1 < offset.size(); ++g)
                    hidden_width_ = std::max<std::int64_t>(hidden_width_, offset[g + 1] - offset[g]);
            }
            if (!record->rows) continue;
            rows.push_back(step->row);
            attention = attention || !record->rows->attention.empty();
            scores = scores || !record->rows->scores.empty();
            for (std::size_t g = 0; g < static_cast<std::size_t>(layout_.n_kv_heads()); ++g)
                thresholds.push_back(g < record->rows->threshold.size()
                                         ? record->rows->threshold[g]
                                         : std::numeric_limits<float>::quiet_NaN());
        }
        const auto n_rows = static_cast<std::int64_t>(rows.size()),
                   n_hidden = static_cast<std::int64_t>(hidden_rows.size());
        const std::int64_t n_parts = kShadowParts.size(), n_layers = layout_.n_layers(),
                           n_heads = layout_.n_heads(), n_kv_heads = layout_.n_kv_heads(),
                           n_positions = history_.n_positions();
        zip_.add(prefix() + "rows.npy", encode_npy(NpyType::i32, {n_rows}, rows.data()));
        zip_.add(prefix() + "thresholds.npy",
                 encode_npy(NpyType::f32, {n_rows, n_kv_heads}, thresholds.data()));
        if (n_hidden > 0)
            zip_.add(prefix() + "hidden_rows.npy", encode_npy(NpyType::i32, {n_hidden}, hidden_rows.data()));
        if (attention)
            attention_ = open("attention.npy", NpyType::f16, {n_rows, n_layers, n_heads, n_positions});
        if (scores) scores_ = open("scores.npy", NpyType::f32, {n_rows, n_kv_heads, n_positions});
        if (n_shadows > 0)
            shadow_ = open("shadow.npy", NpyType::f32, {n_shadows, n_parts, n_layers, n_heads});
        if (n_hidden > 0) hidden_ = open("hidden.npy", NpyType::u8, {n_hidden, n_kv_heads, hidden_width_});
    }
    std::unique_ptr<NpyWriter> open(const char* name, NpyType type, NpyShape shape) const {
        return std::make_unique<NpyWriter>(scratch_ / fmt::format("lane{}_{}", lane_, name), type,
                                           std::move(shape));
    }

    void add_rows(int row, const RowBlock& block) {
        const int n_kv_heads = layout_.n_kv_heads(), n_units = layout_.n_layers() * layout_.n_heads();
        std::vector<std::vector<std::int32_t>> held;  // by KV head
        for (int g = 0; g < n_kv_heads; ++g) held.push_back(history_.held_positions(lane_, g, row));
        std::vector<float> line(static_cast<std::size_t>(history_.n_positions()));
        const auto write = [&](NpyWriter& to, int n_lines, int i, int g, std::int64_t begin, std::int64_t end,
                               float absent, const auto& value) {
            const std::vector<std::int32_t>& positions = held[static_cast<std::size_t>(g)];
            if (end - begin != static_cast<std::int64_t>(positions.size()))
                fail(ErrorCode::bad_file,
                     "cannot write the trace: row {} has {} values for the {} tokens that KV head {} held; "
                     "its records are damaged",
                     row, end - begin, positions.size(), g);
            std::fill(line.begin(), line.end(), absent);
            for (const std::int32_t p : positions) line[static_cast<std::size_t>(p)] = value(begin++);
            to.write((row_at_ * n_lines + i) * history_.n_positions(), line);
        };
        for (int i = 0; i < n_units && !block.attention.empty(); ++i) {
            const auto at = static_cast<std::size_t>(i);
            write(*attention_, n_units, i,
                  layout_.kv_head_from_head(i / layout_.n_heads(), i % layout_.n_heads()),
                  block.head_offset[at], block.head_offset[at + 1], 0, [&](std::int64_t k) {
                      return float_from_fp16(block.attention[static_cast<std::size_t>(k)]);
                  });
        }
        for (int g = 0; g < n_kv_heads && !block.scores.empty(); ++g) {
            const auto at = static_cast<std::size_t>(g);
            write(*scores_, n_kv_heads, g, g, block.offset[at], block.offset[at + 1],
                  std::numeric_limits<float>::quiet_NaN(),
                  [&](std::int64_t k) { return block.scores[static_cast<std::size_t>(k)]; });
        }
        ++row_at_;
    }

    /// Positions that the row did not see.
    void add_hidden(const HiddenSet& set) {
        std::vector<float> line(static_cast<std::size_t>(hidden_width_));
        for (std::size_t g = 0; g + 1 < set.offset.size(); ++g) {
            std::fill(line.begin(), line.end(), 0.0f);
            std::copy(set.bits.begin() + set.offset[g], set.bits.begin() + set.offset[g + 1], line.begin());
            hidden_->write(hidden_at_ + static_cast<std::int64_t>(g) * hidden_width_, line);
        }
        hidden_at_ += layout_.n_kv_heads() * hidden_width_;
    }

    ZipWriter& zip_;
    const RunHistory& history_;
    const KvLayout& layout_;
    const int lane_;
    const fs::path scratch_;
    std::unique_ptr<NpyWriter> attention_, scores_, shadow_, hidden_;
    std::int64_t row_at_ = 0, shadow_at_ = 0, hidden_at_ = 0, hidden_width_ = 0;
};

void add_prompt_rows(ZipWriter& zip, const RunInfo& run, const PromptRows& prompt,
                     const std::string& prefix) {
    const std::int32_t reduction = prompt.reduction;
    zip.add(prefix + "prompt_attention.npy",
            encode_npy(NpyType::f16, {run.layout.n_layers() * run.layout.n_heads(), prompt.size, prompt.size},
                       prompt.attention.data()));
    zip.add(prefix + "prompt_reduction.npy", encode_npy(NpyType::i32, {1}, &reduction));
}

/// light, whole: as in Frames.
void write_trace(const StepList& light,
                 const std::function<std::shared_ptr<const StepTrace>(std::size_t)>& whole,
                 const fs::path& path) {
    RunHistory history;
    history.update(light);
    fs::path part = path, folder = path;
    part += ".part";
    folder += ".scratch";
    const ScratchFolder scratch(folder);
    ZipWriter zip(part);
    const std::string json = format_trace_json(light, true);
    const auto bytes = std::as_bytes(std::span(json.data(), json.size()));
    zip.add("run.json", {bytes.begin(), bytes.end()});
    const int n_lanes = history.empty() ? 0 : static_cast<int>(history.lanes().size());
    std::vector<std::unique_ptr<LaneArrays>> lanes;
    for (int lane = 0; lane < n_lanes; ++lane)
        lanes.push_back(std::make_unique<LaneArrays>(zip, history, lane, scratch.path()));
    for (std::size_t i = 0; i < light.size(); ++i) {
        const std::shared_ptr<const StepTrace> step = whole(i);
        for (const LaneRecord& record : step->lanes)
            lanes[static_cast<std::size_t>(*history.lane_from_id(record.info->id))]->add(step->row, record);
    }
    for (const auto& lane : lanes) lane->close();
    if (!light.empty() && light.front()->prompt_rows)
        add_prompt_rows(zip, history.run(), *light.front()->prompt_rows, "");
    for (int lane = 0; lane < n_lanes; ++lane) {
        const LaneRecord* first =
            history.lane_record(history.lanes()[static_cast<std::size_t>(lane)].first_row, lane);
        if (first && first->prompt_rows)
            add_prompt_rows(zip, history.run(), *first->prompt_rows, fmt::format("lane{}/", lane));
    }
    zip.close();
    std::error_code error;
    fs::rename(part, path, error);
    if (error) fail(ErrorCode::io, "cannot write {}: {}", path.string(), error.message());
}

void write_trace(const Frames& frames, const fs::path& path) {
    write_trace(
        frames.light(), [&](std::size_t i) { return frames.whole(i); }, path);
}

}  // namespace

void write_trace(const StepList& steps, const fs::path& path) {
    write_trace(
        steps, [&](std::size_t i) { return steps[i]; }, path);
}

namespace {

/// FILE-recovered.keyhole, numbered where that is taken: nothing is written over.
fs::path recovered_path(const fs::path& trace) {
    const std::string stem = trace.stem().string() + "-recovered", extension = trace.extension().string();
    fs::path free = trace;
    free.replace_filename(stem + extension);
    for (int n = 2; fs::exists(free) || fs::exists(free.string() + ".spool"); ++n)
        free.replace_filename(fmt::format("{}-{}{}", stem, n, extension));
    return free;
}

/// What a crash left under this name is saved beside the trace that comes now; what cannot be read (damaged, or of another
/// version) is put aside as it is.
void rescue_spool(const fs::path& spool, const fs::path& trace) {
    std::error_code error;
    if (!fs::exists(spool / kFrames, error) || fs::file_size(spool / kFrames, error) == 0) return;
    fs::path to = recovered_path(trace);
    try {
        const Frames frames(spool / kFrames);
        if (!frames.light().empty()) return write_trace(frames, to);
    } catch (const Error& why) {
        if (why.code() != ErrorCode::bad_file) throw;
    }
    to += ".spool";
    fs::rename(spool, to, error);
    if (error) fail_io(spool, "put aside");
}

}  // namespace

TraceWriter::TraceWriter(fs::path path) : path_(std::move(path)), spool_(path_) {
    spool_ += ".spool";
    std::error_code error;
    rescue_spool(spool_, path_);
    fs::remove_all(spool_, error);
    fs::create_directories(spool_, error);
    file_ = std::fopen((spool_ / kFrames).c_str(), "wb");
    if (!file_) fail_io(spool_, "create the spool");
}

TraceWriter::~TraceWriter() {
    if (file_) std::fclose(file_);
}

void TraceWriter::append(const StepTrace& step) {
    KH_ASSERT(file_);
    KH_ASSERT(!begun_ || step.run->id == run_id_, "records of two runs in one trace");
    const std::string frame = make_frame(step, !begun_);
    if (std::fwrite(frame.data(), 1, frame.size(), file_) != frame.size() || std::fflush(file_) != 0)
        fail_io(spool_ / kFrames, "write");
    begun_ = true;
    run_id_ = step.run->id;
}

void TraceWriter::finish() {
    KH_ASSERT(file_);
    std::FILE* file = std::exchange(file_, nullptr);
    if (std::fclose(file) != 0) fail_io(spool_ / kFrames, "write");
    write_trace(Frames(spool_ / kFrames), path_);
    std::error_code error;
    fs::remove_all(spool_, error);
}

fs::path recover_spool(const fs::path& spool) {
    const Frames frames(spool / kFrames);
    if (frames.light().empty())
        fail(ErrorCode::bad_file, "{} holds no whole record; nothing can be recovered", spool.string());
    fs::path path = spool;
    path.replace_extension();  // FILE.keyhole.spool -> FILE.keyhole
    if (fs::exists(path)) path = recovered_path(path);
    write_trace(frames, path);
    std::error_code error;
    fs::remove_all(spool, error);
    return path;
}

}  // namespace keyhole
