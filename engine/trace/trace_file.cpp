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

class ZipReader {
  public:
    explicit ZipReader(const fs::path& path) : path_(path) {
        int error = 0;
        zip_ = zip_open(path.c_str(), ZIP_RDONLY | ZIP_CHECKCONS, &error);
        if (zip_) return;
        zip_error_t why;
        zip_error_init_with_code(&why, error);
        const std::string text = zip_error_strerror(&why);
        zip_error_fini(&why);
        fail(ErrorCode::bad_file, "{} cannot be opened as a trace: {}; it may be cut off or no .keyhole file",
             path.string(), text);
    }
    ~ZipReader() {
        if (zip_) zip_discard(zip_);
    }
    ZipReader(const ZipReader&) = delete;
    ZipReader& operator=(const ZipReader&) = delete;

    bool contains(const std::string& name) const { return zip_name_locate(zip_, name.c_str(), 0) >= 0; }
    std::string where(const std::string& name) const {
        return fmt::format("{}, member {}", path_.string(), name);
    }

    /// A member, read from its beginning on.
    class Member {
      public:
        Member(const ZipReader& zip, std::string name) : zip_(zip), name_(std::move(name)) {
            zip_stat_t stat;
            zip_stat_init(&stat);
            if (zip_stat(zip_.zip_, name_.c_str(), 0, &stat) != 0 || !(stat.valid & ZIP_STAT_SIZE))
                zip_.bad(name_, "it is missing");
            size_ = stat.size;
            file_ = zip_fopen(zip_.zip_, name_.c_str(), 0);
            if (!file_) zip_.bad(name_, zip_strerror(zip_.zip_));
        }
        ~Member() { zip_fclose(file_); }
        Member(const Member&) = delete;
        Member& operator=(const Member&) = delete;

        /// Fewer bytes than asked for at the end alone.
        std::size_t read(std::span<std::byte> to) {
            std::size_t n_read = 0;
            while (n_read < to.size()) {
                const zip_int64_t n = zip_fread(file_, to.data() + n_read, to.size() - n_read);
                if (n < 0) zip_.bad(name_, zip_file_strerror(file_));
                if (n == 0) break;
                n_read += static_cast<std::size_t>(n);
            }
            n_read_ += n_read;
            return n_read;
        }
        /// It ends here, and is as long as the directory says; its checksum is known only now.
        void end() {
            std::byte more;
            if (read({&more, 1}) != 0 || n_read_ != size_) zip_.bad(name_, "it is cut off");
        }

      private:
        const ZipReader& zip_;
        const std::string name_;
        zip_file_t* file_ = nullptr;
        std::uint64_t size_ = 0, n_read_ = 0;
    };

    std::vector<std::byte> read(const std::string& name) const {
        Member member(*this, name);
        // The directory's size is a claim; memory grows with what really comes.
        std::vector<std::byte> bytes;
        constexpr std::size_t kChunk = std::size_t{1} << 20;
        for (;;) {
            const std::size_t have = bytes.size();
            bytes.resize(have + kChunk);
            const std::size_t n = member.read(std::span(bytes).subspan(have));
            bytes.resize(have + n);
            if (n < kChunk) break;
        }
        member.end();
        return bytes;
    }

    /// -1 in the expected shape: any extent.
    void check(const std::string& name, NpyType found, const NpyShape& found_shape, NpyType type,
               const NpyShape& shape) const {
        bool fits = found == type && found_shape.size() == shape.size();
        for (std::size_t d = 0; fits && d < shape.size(); ++d)
            fits = shape[d] < 0 || shape[d] == found_shape[d];
        if (!fits) bad(name, "its type or shape does not fit the run");
    }
    NpyArray array(const std::string& name, NpyType type, const NpyShape& shape) const {
        NpyArray out = decode_npy(read(name), where(name));
        check(name, out.type, out.shape, type, shape);
        return out;
    }

    /// A large array, line by line.
    template <class T>
    class Lines {
      public:
        Lines(const ZipReader& zip, const std::string& name, NpyType type, const NpyShape& shape)
            : zip_(zip), name_(name), member_(zip, name), line_(static_cast<std::size_t>(shape.back())) {
            std::vector<std::byte> bytes(10);
            bytes.resize(member_.read(bytes));
            if (const std::size_t n = npy_header_bytes(bytes); n > bytes.size()) {
                bytes.resize(n);
                bytes.resize(10 + member_.read(std::span(bytes).subspan(10)));
            }
            const NpyHeader header = parse_npy_header(bytes, zip.where(name));
            zip.check(name, header.type, header.shape, type, shape);
            KH_ASSERT(npy_type_bytes(type) == sizeof(T));
        }
        /// The next one; it stays until the one after.
        const std::vector<T>& next() {
            const std::span<std::byte> bytes = std::as_writable_bytes(std::span(line_));
            if (member_.read(bytes) != bytes.size()) zip_.bad(name_, "it is cut off");
            return line_;
        }
        void end() { member_.end(); }

      private:
        const ZipReader& zip_;
        const std::string name_;
        Member member_;
        std::vector<T> line_;
    };

    [[noreturn]] void bad(const std::string& name, std::string_view why) const {
        fail(ErrorCode::bad_file, "{} is damaged: {}", where(name), why);
    }

  private:
    fs::path path_;
    zip_t* zip_ = nullptr;
};

/// A trace being read: scalars first, then evictions, then rows, each of which needs what came before.
class TraceReader {
  public:
    TraceReader(const fs::path& path, std::function<bool(double)> tell)
        : path_(path), tell_(std::move(tell)), zip_(path) {
        const std::vector<std::byte> text = zip_.read("run.json");
        const ParsedTrace parsed = parse_trace_json({reinterpret_cast<const char*>(text.data()), text.size()},
                                                    zip_.where("run.json"), nullptr);
        parts_ = parsed.parts;
        check_size(parsed.steps, text.size());
        check_lanes(parsed.steps, zip_.where("run.json"));
        for (const auto& step : parsed.steps) {
            steps_.push_back(std::make_shared<StepTrace>(*step));
            for (const LaneRecord& lane : step->lanes)
                lane_index_.emplace(lane.info->id, static_cast<int>(lane_index_.size()));
        }
        for (const auto& step : parts_)
            for (const RowParts& parts : step) n_rows_ += parts.any ? 1 : 0;
    }

    StepList read() {
        if (steps_.empty()) return {};
        for (const auto& [id, index] : lane_index_) {
            read_evictions(id, index);
            read_shadow(id, index);
        }
        RunHistory history;
        history.update({steps_.begin(), steps_.end()});
        for (const auto& [id, index] : lane_index_) {
            read_rows(history, id, index);
            read_pins(id, index);
            read_hidden(history, id, index);
        }
        read_prompt();
        return {steps_.begin(), steps_.end()};
    }

  private:
    /// Tables of [KV heads, positions] come from a few numbers: they must be in proportion to the file.
    void check_size(const StepList& steps, std::size_t n_text) const {
        if (steps.empty()) return;
        constexpr std::int64_t kLargestTable = std::int64_t{1} << 28;
        const std::int64_t n_positions = steps.back()->row + 1;
        if (n_positions > static_cast<std::int64_t>(n_text) ||
            n_positions * steps.back()->run->layout.n_kv_heads() > kLargestTable)
            zip_.bad("run.json", fmt::format("row {} is beyond what it can hold", n_positions - 1));
    }

    const RunInfo& run() const { return *steps_.front()->run; }
    const KvLayout& layout(const LaneRecord& lane) const {
        return lane.info->layout != nullptr ? *lane.info->layout : run().layout;
    }

    /// A lane's record in a step, and which arrays it has.
    std::pair<LaneRecord*, RowParts> record(int row, int id) {
        const auto it = std::lower_bound(steps_.begin(), steps_.end(), row,
                                         [](const auto& step, int r) { return step->row < r; });
        if (it == steps_.end() || (*it)->row != row) return {nullptr, {}};
        for (std::size_t i = 0; i < (*it)->lanes.size(); ++i)
            if ((*it)->lanes[i].info->id == id)
                return {&(*it)->lanes[i], parts_[static_cast<std::size_t>(it - steps_.begin())][i]};
        return {nullptr, {}};
    }

    void read_evictions(int id, int index) {
        const std::string name = fmt::format("lane{}/evictions.npy", index);
        const auto values = zip_.array(name, NpyType::i32, {-1, 4}).as<std::int32_t>();
        const int n_positions = steps_.back()->row + 1;
        for (std::size_t i = 0; i + 4 <= values.size(); i += 4) {
            LaneRecord* lane = record(values[i], id).first;
            const Eviction e{values[i + 1], values[i + 2], values[i + 3]};
            if (!lane || e.kv_head < 0 || e.kv_head >= layout(*lane).n_kv_heads() || e.position < 0 ||
                e.position >= n_positions || e.row < -1 || e.row >= n_positions)
                zip_.bad(name, fmt::format("line {} is of no row, KV head or position of the run", i / 4));
            lane->evictions.push_back(e);
        }
    }

    void read_pins(int id, int index) {
        const std::string name = fmt::format("lane{}/pins.npy", index);
        if (!zip_.contains(name)) return;
        const auto values = zip_.array(name, NpyType::i32, {-1, 4}).as<std::int32_t>();
        const auto before = [](const Pin& a, const Pin& b) {
            return std::pair(a.kv_head, a.position) < std::pair(b.kv_head, b.position);
        };
        std::size_t i = 0;
        std::shared_ptr<const PinList> pins;
        for (const auto& step : steps_) {
            LaneRecord* lane = record(step->row, id).first;
            PinList changed = pins ? *pins : PinList();
            const std::size_t first = i;
            for (; i + 4 <= values.size() && values[i] <= step->row; i += 4) {
                const Pin pin{values[i + 1], values[i + 2]};
                if (!lane || values[i] != step->row || pin.kv_head < 0 ||
                    pin.kv_head >= layout(*lane).n_kv_heads() || pin.position < 0 || pin.position > step->row)
                    zip_.bad(name,
                             fmt::format("line {} is of no row, KV head or position of the run", i / 4));
                std::erase(changed, pin);
                if (values[i + 3] != 0)
                    changed.insert(std::lower_bound(changed.begin(), changed.end(), pin, before), pin);
            }
            if (i > first) pins = changed.empty() ? nullptr : std::make_shared<const PinList>(changed);
            if (lane) lane->pins = pins;
        }
        if (i != values.size()) zip_.bad(name, "it goes on after the last row");
    }

    void read_hidden(const RunHistory& history, int id, int index) {
        const std::string rows_name = fmt::format("lane{}/hidden_rows.npy", index),
                          name = fmt::format("lane{}/hidden.npy", index);
        if (!zip_.contains(rows_name)) return;
        const auto rows = zip_.array(rows_name, NpyType::i32, {-1}).as<std::int32_t>();
        const int lane = *history.lane_from_id(id), n_kv_heads = history.layout(lane).n_kv_heads();
        const NpyArray array =
            zip_.array(name, NpyType::u8, {static_cast<std::int64_t>(rows.size()), n_kv_heads, -1});
        const auto bits = array.as<std::uint8_t>();
        const auto width = static_cast<std::size_t>(array.shape[2]);
        for (std::size_t i = 0; i < rows.size(); ++i) {
            LaneRecord* to = record(rows[i], id).first;
            if (!to || to->hidden) zip_.bad(rows_name, fmt::format("row {} has no such record", rows[i]));
            auto set = std::make_shared<HiddenSet>();
            set->offset.push_back(0);
            for (int g = 0; g < n_kv_heads; ++g) {
                const std::size_t n = (history.held_positions(lane, g, rows[i]).size() + 7) / 8;
                if (n > width) zip_.bad(name, "it is narrower than what the lane stored");
                const auto from =
                    bits.begin() +
                    static_cast<std::ptrdiff_t>(
                        (i * static_cast<std::size_t>(n_kv_heads) + static_cast<std::size_t>(g)) * width);
                set->bits.insert(set->bits.end(), from, from + static_cast<std::ptrdiff_t>(n));
                set->offset.push_back(static_cast<std::int32_t>(set->bits.size()));
            }
            to->hidden = std::move(set);
        }
    }

    void read_shadow(int id, int index) {
        std::vector<LaneRecord*> records;
        for (std::size_t s = 0; s < steps_.size(); ++s)
            for (std::size_t i = 0; i < steps_[s]->lanes.size(); ++i)
                if (parts_[s][i].shadow && steps_[s]->lanes[i].info->id == id)
                    records.push_back(&steps_[s]->lanes[i]);
        if (records.empty()) return;
        const std::int64_t n_layers = run().layout.n_layers(), n_heads = run().layout.n_heads();
        const auto values = zip_.array(fmt::format("lane{}/shadow.npy", index), NpyType::f32,
                                       {static_cast<std::int64_t>(records.size()),
                                        static_cast<std::int64_t>(kShadowParts.size()), n_layers, n_heads})
                                .as<float>();
        auto from = values.begin();
        for (LaneRecord* record : records) {
            auto shadow = std::make_shared<ShadowRow>();
            for (const auto part : kShadowParts) {
                ((*shadow).*part).assign(from, from + n_layers * n_heads);
                from += n_layers * n_heads;
            }
            record->shadow = std::move(shadow);
        }
    }

    void read_rows(const RunHistory& history, int id, int index) {
        const std::string prefix = fmt::format("lane{}/", index);
        const int lane = *history.lane_from_id(id);
        const KvLayout& layout = history.layout(lane);
        const int n_positions = steps_.back()->row + 1;
        const auto rows = zip_.array(prefix + "rows.npy", NpyType::i32, {-1}).as<std::int32_t>();
        const auto n_rows = static_cast<std::int64_t>(rows.size());
        std::size_t expected = 0;
        for (const auto& step : steps_)
            for (std::size_t i = 0; i < step->lanes.size(); ++i)
                expected += step->lanes[i].info->id == id &&
                            parts_[static_cast<std::size_t>(&step - steps_.data())][i].any;
        if (expected != rows.size()) zip_.bad(prefix + "rows.npy", "run.json names other rows");
        const NpyArray thresholds =
            zip_.array(prefix + "thresholds.npy", NpyType::f32, {n_rows, layout.n_kv_heads()});
        const bool has_attention = zip_.contains(prefix + "attention.npy"),
                   has_scores = zip_.contains(prefix + "scores.npy");
        std::optional<ZipReader::Lines<std::uint16_t>> attention;
        std::optional<ZipReader::Lines<float>> scores;
        if (has_attention)
            attention.emplace(zip_, prefix + "attention.npy", NpyType::f16,
                              NpyShape{n_rows, layout.n_layers(), layout.n_heads(), n_positions});
        if (has_scores)
            scores.emplace(zip_, prefix + "scores.npy", NpyType::f32,
                           NpyShape{n_rows, layout.n_kv_heads(), n_positions});

        for (std::size_t i = 0; i < rows.size(); ++i) {
            told(++rows_read_);
            const auto [to, parts] = record(rows[i], id);
            if (!to || !parts.any || to->rows)
                zip_.bad(prefix + "rows.npy", fmt::format("row {} has no such record", rows[i]));
            if (parts.attention && !has_attention) zip_.bad(prefix + "attention.npy", "it is missing");
            if (parts.scores && !has_scores) zip_.bad(prefix + "scores.npy", "it is missing");
            auto block = std::make_shared<RowBlock>();
            std::vector<std::vector<std::int32_t>> sets;
            block->offset.push_back(0);
            const auto gather = [](auto& lines, const std::vector<std::int32_t>& set, bool wanted,
                                   auto& out) {
                if (!lines) return;
                const auto& line = lines->next();
                if (wanted)
                    for (const std::int32_t p : set) out.push_back(line[static_cast<std::size_t>(p)]);
            };
            for (int g = 0; g < layout.n_kv_heads(); ++g) {
                sets.push_back(history.held_positions(lane, g, rows[i]));
                block->offset.push_back(block->offset.back() + static_cast<std::int32_t>(sets.back().size()));
                gather(scores, sets.back(), parts.scores, block->scores);
                block->threshold.push_back(
                    thresholds.value(static_cast<std::int64_t>(i) * layout.n_kv_heads() + g));
            }
            block->head_offset.push_back(0);
            for (int unit = 0; unit < layout.n_layers() * layout.n_heads(); ++unit) {
                const auto& set = sets[static_cast<std::size_t>(
                    layout.kv_head_from_head(unit / layout.n_heads(), unit % layout.n_heads()))];
                block->head_offset.push_back(block->head_offset.back() +
                                             static_cast<std::int64_t>(set.size()));
                gather(attention, set, parts.attention, block->attention);
            }
            to->rows = std::move(block);
        }
        if (attention) attention->end();
        if (scores) scores->end();
    }

    void told(std::int64_t n_rows) const {
        if (tell_ && !tell_(static_cast<double>(n_rows) / static_cast<double>(n_rows_)))
            fail(ErrorCode::cancelled, "opening {} was cancelled", path_.string());
    }

    void read_prompt() {
        steps_.front()->prompt_rows = prompt_rows("");
        for (const auto& [id, index] : lane_index_) {
            const auto rows = prompt_rows(fmt::format("lane{}/", index));
            for (std::size_t i = 0; rows && i < steps_.size(); ++i)
                if (LaneRecord* first = record(steps_[i]->row, id).first) {
                    first->prompt_rows = rows;
                    break;
                }
        }
    }

    std::shared_ptr<const PromptRows> prompt_rows(const std::string& prefix) {
        const std::string name = prefix + "prompt_attention.npy",
                          reduction_name = prefix + "prompt_reduction.npy";
        if (!zip_.contains(name)) return nullptr;
        auto prompt = std::make_shared<PromptRows>();
        const auto reduction = zip_.array(reduction_name, NpyType::i32, {1}).as<std::int32_t>()[0];
        const int n_prompt = run().n_prompt();
        if (reduction < 1 || reduction > 2 * n_prompt)
            zip_.bad(reduction_name, fmt::format("{} is no reduction", reduction));
        prompt->reduction = reduction;
        prompt->size = (n_prompt + reduction - 1) / reduction;
        prompt->attention =
            zip_.array(name, NpyType::f16,
                       {run().layout.n_layers() * run().layout.n_heads(), prompt->size, prompt->size})
                .as<std::uint16_t>();
        if (steps_.front()->row != n_prompt - 1) zip_.bad(name, "the run has no record of the prompt");
        return prompt;
    }

    const fs::path path_;
    const std::function<bool(double)> tell_;
    ZipReader zip_;
    std::vector<std::shared_ptr<StepTrace>> steps_;
    std::vector<std::vector<RowParts>> parts_;
    std::map<int, int> lane_index_;            // lane id -> order of appearance
    std::int64_t n_rows_ = 0, rows_read_ = 0;  // of all lanes
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

StepList read_trace(const fs::path& path, const std::function<bool(double)>& tell) {
    return TraceReader(path, tell).read();
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
