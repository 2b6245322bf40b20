#include "engine/trace/trace_file.h"

#include "engine/base/error.h"
#include "engine/base/half.h"
#include "engine/base/mapped_file.h"
#include "engine/base/npy.h"
#include "engine/trace/run_history.h"
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
#include <system_error>

namespace keyhole {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kMagic = "KHFRAME3";
constexpr const char* kFrames = "frames.bin";

[[noreturn]] void fail_io(const fs::path& path, const char* what) {
    fail(ErrorCode::io, "cannot {} {}: {}; check that the folder is writable and not full", what,
         path.string(), std::strerror(errno));
}

std::uint64_t fnv1a(std::string_view bytes) {
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return hash;
}

// --- frames of the spool: magic, length, hash, payload -----------------------------------------------------------------

class Packer {
  public:
    template <class T>
    void put(const std::vector<T>& values) {
        number(values.size());
        bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
    }
    void text(std::string_view value) {
        number(value.size());
        bytes_ += value;
    }
    void number(std::uint64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
    const std::string& bytes() const { return bytes_; }

  private:
    std::string bytes_;
};

class Unpacker {
  public:
    explicit Unpacker(std::string_view bytes) : rest_(bytes) {}
    std::uint64_t number() {
        std::uint64_t value = 0;
        std::memcpy(&value, take(sizeof value).data(), sizeof value);
        return value;
    }
    std::string_view text() { return take(number()); }
    template <class T>
    void get(std::vector<T>& values) {
        const std::uint64_t n = number();
        const std::string_view bytes = n <= rest_.size() ? take(n * sizeof(T)) : take(n);
        values.resize(n);
        if (n) std::memcpy(values.data(), bytes.data(), bytes.size());
    }

  private:
    std::string_view take(std::uint64_t n) {
        if (n > rest_.size()) fail(ErrorCode::bad_file, "a record of the spool is cut off");
        const std::string_view out = rest_.substr(0, n);
        rest_.remove_prefix(n);
        return out;
    }
    std::string_view rest_;
};

/// The parts of a ShadowRow in the order of the file.
constexpr std::array kShadowParts = {&ShadowRow::retained_mass, &ShadowRow::cosine_ideal,
                                     &ShadowRow::cosine_full, &ShadowRow::output_similarity};

void pack_prompt_rows(Packer& out, const PromptRows* rows) {
    out.number(rows != nullptr ? 1 : 0);
    if (rows == nullptr) return;
    out.number(static_cast<std::uint64_t>(rows->reduction));
    out.number(static_cast<std::uint64_t>(rows->size));
    out.put(rows->attention);
}

std::string pack(const StepTrace& step, bool with_run) {
    // A list that does not own the step: it is only read.
    const StepList one{std::shared_ptr<const StepTrace>(std::shared_ptr<void>(), &step)};
    Packer out;
    out.text(format_trace_json(one, with_run));
    for (const LaneRecord& lane : step.lanes) {
        out.put(lane.evictions);
        out.put(lane.pins ? *lane.pins : PinList());
        out.put(lane.hidden ? lane.hidden->offset : std::vector<std::int32_t>());
        out.put(lane.hidden ? lane.hidden->bits : std::vector<std::uint8_t>());
        if (lane.shadow)
            for (const auto part : kShadowParts) out.put((*lane.shadow).*part);
        if (!lane.rows) continue;
        out.put(lane.rows->offset);
        out.put(lane.rows->head_offset);
        out.put(lane.rows->attention);
        out.put(lane.rows->scores);
        out.put(lane.rows->threshold);
    }
    pack_prompt_rows(out, step.prompt_rows.get());
    for (const LaneRecord& lane : step.lanes) pack_prompt_rows(out, lane.prompt_rows.get());
    return out.bytes();
}

std::shared_ptr<StepTrace> unpack(std::string_view bytes, std::string_view name,
                                  std::shared_ptr<const RunInfo> run) {
    Unpacker in(bytes);
    const ParsedTrace parsed = parse_trace_json(in.text(), name, std::move(run));
    if (parsed.steps.size() != 1)
        fail(ErrorCode::bad_file, "{}: a record of the spool has {} steps", name, parsed.steps.size());
    auto step = std::make_shared<StepTrace>(*parsed.steps.front());
    for (std::size_t i = 0; i < step->lanes.size(); ++i) {
        in.get(step->lanes[i].evictions);
        PinList pins;
        in.get(pins);
        if (!pins.empty()) step->lanes[i].pins = std::make_shared<const PinList>(std::move(pins));
        HiddenSet hidden;
        in.get(hidden.offset);
        in.get(hidden.bits);
        if (!hidden.offset.empty())
            step->lanes[i].hidden = std::make_shared<const HiddenSet>(std::move(hidden));
        if (parsed.parts[0][i].shadow) {
            auto shadow = std::make_shared<ShadowRow>();
            for (const auto part : kShadowParts) in.get((*shadow).*part);
            step->lanes[i].shadow = std::move(shadow);
        }
        if (!parsed.parts[0][i].any) continue;
        auto block = std::make_shared<RowBlock>();
        in.get(block->offset);
        in.get(block->head_offset);
        in.get(block->attention);
        in.get(block->scores);
        in.get(block->threshold);
        step->lanes[i].rows = std::move(block);
    }
    const auto prompt_rows = [&]() -> std::shared_ptr<const PromptRows> {
        if (in.number() == 0) return nullptr;
        auto rows = std::make_shared<PromptRows>();
        rows->reduction = static_cast<int>(in.number());
        rows->size = static_cast<int>(in.number());
        in.get(rows->attention);
        return rows;
    };
    step->prompt_rows = prompt_rows();
    for (LaneRecord& lane : step->lanes) lane.prompt_rows = prompt_rows();
    return step;
}

/// What does not change from row to row is one object again, as it was before each frame got its own.
void share(StepTrace& step, const StepTrace& before) {
    if (step.other_branches && before.other_branches && *step.other_branches == *before.other_branches)
        step.other_branches = before.other_branches;
    for (LaneRecord& lane : step.lanes)
        for (const LaneRecord& known : before.lanes) {
            const LaneInfo &a = *lane.info, &b = *known.info;
            if (a.id != b.id) continue;
            if (a.spec == b.spec && a.effective == b.effective && a.forked_from == b.forked_from &&
                a.forked_at == b.forked_at && a.relived == b.relived)
                lane.info = known.info;
            if (lane.pins && known.pins && *lane.pins == *known.pins) lane.pins = known.pins;
        }
}

/// The records of a spool up to the first that is not whole.
StepList read_frames(const fs::path& path) {
    StepList steps;
    std::shared_ptr<const RunInfo> run;
    const MappedFile file(path);
    std::string_view rest(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    constexpr std::size_t kHead = 24;
    while (rest.size() >= kHead && rest.starts_with(kMagic)) {
        std::uint64_t length = 0, hash = 0;
        std::memcpy(&length, rest.data() + 8, sizeof length);
        std::memcpy(&hash, rest.data() + 16, sizeof hash);
        if (length > rest.size() - kHead) break;
        const std::string_view payload = rest.substr(kHead, length);
        if (fnv1a(payload) != hash) break;
        auto step = unpack(payload, path.string(), run);
        run = step->run;
        if (!steps.empty()) share(*step, *steps.back());
        while (!steps.empty() && steps.back()->row >= step->row) steps.pop_back();  // rewound
        steps.push_back(std::move(step));
        rest.remove_prefix(kHead + length);
    }
    return steps;
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

/// What a lane's pins became at the rows where they changed, and the positions that its rows did not see.
void add_pins_and_hidden(ZipWriter& zip, const RunHistory& history, int lane) {
    const int n_kv_heads = history.layout(lane).n_kv_heads();
    const std::string prefix = fmt::format("lane{}/", lane);
    std::vector<std::int32_t> changes, rows;
    std::shared_ptr<const PinList> before;
    std::vector<const HiddenSet*> sets;
    std::size_t width = 0;
    const auto tell = [&](int row, const PinList* those, const PinList* others, int pinned) {
        for (const Pin& pin : those ? *those : PinList())
            if (!others || std::find(others->begin(), others->end(), pin) == others->end())
                changes.insert(changes.end(), {row, pin.kv_head, pin.position, pinned});
    };
    for (const auto& step : history.steps()) {
        const LaneRecord* record = history.lane_record(step->row, lane);
        if (!record) continue;
        if (record->pins != before) {
            tell(step->row, before.get(), record->pins.get(), 0);
            tell(step->row, record->pins.get(), before.get(), 1);
            before = record->pins;
        }
        if (!record->hidden) continue;
        rows.push_back(step->row);
        sets.push_back(record->hidden.get());
        for (std::size_t g = 0; g + 1 < sets.back()->offset.size(); ++g)
            width = std::max(width,
                             static_cast<std::size_t>(sets.back()->offset[g + 1] - sets.back()->offset[g]));
    }
    if (!changes.empty())
        zip.add(prefix + "pins.npy",
                encode_npy(NpyType::i32, {static_cast<std::int64_t>(changes.size() / 4), 4}, changes.data()));
    if (rows.empty()) return;
    std::vector<std::uint8_t> bits(rows.size() * static_cast<std::size_t>(n_kv_heads) * width, 0);
    for (std::size_t i = 0; i < sets.size(); ++i)
        for (std::size_t g = 0; g + 1 < sets[i]->offset.size(); ++g)
            std::copy(
                sets[i]->bits.begin() + sets[i]->offset[g], sets[i]->bits.begin() + sets[i]->offset[g + 1],
                bits.begin() +
                    static_cast<std::ptrdiff_t>((i * static_cast<std::size_t>(n_kv_heads) + g) * width));
    const auto n = static_cast<std::int64_t>(rows.size());
    zip.add(prefix + "hidden_rows.npy", encode_npy(NpyType::i32, {n}, rows.data()));
    zip.add(prefix + "hidden.npy",
            encode_npy(NpyType::u8, {n, n_kv_heads, static_cast<std::int64_t>(width)}, bits.data()));
}

/// Arrays of one lane.
void add_lane(ZipWriter& zip, const RunHistory& history, int lane, const fs::path& scratch) {
    const KvLayout& layout = history.layout(lane);
    const int n_positions = history.n_positions(), n_kv_heads = layout.n_kv_heads();
    const std::string prefix = fmt::format("lane{}/", lane);
    std::vector<std::int32_t> evictions, rows, table;
    std::vector<float> thresholds, shadow;
    bool attention = false, scores = false;
    for (const auto& step : history.steps()) {
        const LaneRecord* record = history.lane_record(step->row, lane);
        if (!record) continue;
        for (const Eviction& e : record->evictions)
            evictions.insert(evictions.end(), {step->row, e.kv_head, e.position, e.row});
        for (std::size_t i = 0; record->shadow && i < kShadowParts.size(); ++i) {
            const std::vector<float>& part = (*record->shadow).*kShadowParts[i];
            shadow.insert(shadow.end(), part.begin(), part.end());
        }
        if (!record->rows) continue;
        rows.push_back(step->row);
        attention = attention || !record->rows->attention.empty();
        scores = scores || !record->rows->scores.empty();
        for (int g = 0; g < n_kv_heads; ++g) {
            const auto i = static_cast<std::size_t>(g);
            thresholds.push_back(i < record->rows->threshold.size()
                                     ? record->rows->threshold[i]
                                     : std::numeric_limits<float>::quiet_NaN());
        }
    }
    for (int g = 0; g < n_kv_heads; ++g)
        for (int p = 0; p < n_positions; ++p) table.push_back(history.evicted_at(lane, g, p));
    const auto n_rows = static_cast<std::int64_t>(rows.size());
    zip.add(prefix + "evicted_at.npy", encode_npy(NpyType::i32, {n_kv_heads, n_positions}, table.data()));
    zip.add(prefix + "evictions.npy",
            encode_npy(NpyType::i32, {static_cast<std::int64_t>(evictions.size() / 4), 4}, evictions.data()));
    zip.add(prefix + "rows.npy", encode_npy(NpyType::i32, {n_rows}, rows.data()));
    zip.add(prefix + "thresholds.npy", encode_npy(NpyType::f32, {n_rows, n_kv_heads}, thresholds.data()));
    if (!shadow.empty()) {
        const std::int64_t n_parts = kShadowParts.size(), n = n_parts * layout.n_layers() * layout.n_heads();
        zip.add(prefix + "shadow.npy", encode_npy(NpyType::f32,
                                                  {static_cast<std::int64_t>(shadow.size()) / n, n_parts,
                                                   layout.n_layers(), layout.n_heads()},
                                                  shadow.data()));
    }

    std::vector<float> line(static_cast<std::size_t>(n_positions));
    const auto add_array = [&](const char* name, NpyType type, NpyShape shape, int n_units,
                               const std::function<bool(int, int)>& fill) {
        const fs::path file = scratch / fmt::format("lane{}_{}", lane, name);
        NpyWriter writer(file, type, std::move(shape));
        for (std::int64_t i = 0; i < n_rows; ++i)
            for (int unit = 0; unit < n_units; ++unit)
                if (fill(rows[static_cast<std::size_t>(i)], unit))
                    writer.write((i * n_units + unit) * n_positions, line);
        writer.close();
        zip.add_file(prefix + name, file);
    };
    if (attention)
        add_array("attention.npy", NpyType::f16, {n_rows, layout.n_layers(), layout.n_heads(), n_positions},
                  layout.n_layers() * layout.n_heads(), [&](int row, int unit) {
                      return history.attention_row(lane, row, unit / layout.n_heads(),
                                                   unit % layout.n_heads(), line);
                  });
    if (scores)
        add_array("scores.npy", NpyType::f32, {n_rows, n_kv_heads, n_positions}, n_kv_heads,
                  [&](int row, int g) { return history.score_row(lane, row, g, line); });
}

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

    std::vector<std::byte> read(const std::string& name) const {
        zip_stat_t stat;
        zip_stat_init(&stat);
        if (zip_stat(zip_, name.c_str(), 0, &stat) != 0 || !(stat.valid & ZIP_STAT_SIZE))
            bad(name, "it is missing");
        zip_file_t* file = zip_fopen(zip_, name.c_str(), 0);
        if (!file) bad(name, zip_strerror(zip_));
        // The size is what the directory claims; memory grows with what really comes.
        std::vector<std::byte> bytes;
        constexpr std::size_t kChunk = std::size_t{1} << 20;
        for (;;) {
            const std::size_t have = bytes.size();
            bytes.resize(have + kChunk);
            const zip_int64_t n = zip_fread(file, bytes.data() + have, kChunk);
            if (n < 0) {
                const std::string why = zip_file_strerror(file);
                zip_fclose(file);
                bad(name, why);
            }
            bytes.resize(have + static_cast<std::size_t>(n));
            if (n == 0) break;
        }
        if (zip_fclose(file) != 0 || bytes.size() != stat.size) bad(name, "it is cut off");
        return bytes;
    }

    NpyArray array(const std::string& name, NpyType type, const NpyShape& shape) const {
        NpyArray out = decode_npy(read(name), where(name));
        // -1 in the expected shape: any extent.
        bool fits = out.type == type && out.shape.size() == shape.size();
        for (std::size_t d = 0; fits && d < shape.size(); ++d)
            fits = shape[d] < 0 || shape[d] == out.shape[d];
        if (!fits) bad(name, "its type or shape does not fit the run");
        return out;
    }

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
    explicit TraceReader(const fs::path& path) : zip_(path) {
        const std::vector<std::byte> text = zip_.read("run.json");
        const ParsedTrace parsed = parse_trace_json({reinterpret_cast<const char*>(text.data()), text.size()},
                                                    zip_.where("run.json"), nullptr);
        parts_ = parsed.parts;
        check_size(parsed.steps, text.size());
        for (const auto& step : parsed.steps) {
            steps_.push_back(std::make_shared<StepTrace>(*step));
            for (const LaneRecord& lane : step->lanes)
                lane_index_.emplace(lane.info->id, static_cast<int>(lane_index_.size()));
        }
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
        std::vector<std::uint16_t> attention;
        std::vector<float> scores;
        if (has_attention)
            attention = zip_.array(prefix + "attention.npy", NpyType::f16,
                                   {n_rows, layout.n_layers(), layout.n_heads(), n_positions})
                            .as<std::uint16_t>();
        if (has_scores)
            scores =
                zip_.array(prefix + "scores.npy", NpyType::f32, {n_rows, layout.n_kv_heads(), n_positions})
                    .as<float>();

        for (std::size_t i = 0; i < rows.size(); ++i) {
            const auto [to, parts] = record(rows[i], id);
            if (!to || !parts.any || to->rows)
                zip_.bad(prefix + "rows.npy", fmt::format("row {} has no such record", rows[i]));
            if (parts.attention && !has_attention) zip_.bad(prefix + "attention.npy", "it is missing");
            if (parts.scores && !has_scores) zip_.bad(prefix + "scores.npy", "it is missing");
            auto block = std::make_shared<RowBlock>();
            std::vector<std::vector<std::int32_t>> sets;
            block->offset.push_back(0);
            for (int g = 0; g < layout.n_kv_heads(); ++g) {
                sets.push_back(history.held_positions(lane, g, rows[i]));
                block->offset.push_back(block->offset.back() + static_cast<std::int32_t>(sets.back().size()));
                const std::size_t line =
                    (i * static_cast<std::size_t>(layout.n_kv_heads()) + static_cast<std::size_t>(g)) *
                    static_cast<std::size_t>(n_positions);
                for (std::int32_t p : sets.back())
                    if (parts.scores) block->scores.push_back(scores[line + static_cast<std::size_t>(p)]);
                block->threshold.push_back(
                    thresholds.value(static_cast<std::int64_t>(i) * layout.n_kv_heads() + g));
            }
            block->head_offset.push_back(0);
            for (int unit = 0; unit < layout.n_layers() * layout.n_heads(); ++unit) {
                const auto& set = sets[static_cast<std::size_t>(
                    layout.kv_head_from_head(unit / layout.n_heads(), unit % layout.n_heads()))];
                block->head_offset.push_back(block->head_offset.back() +
                                             static_cast<std::int64_t>(set.size()));
                const std::size_t line = (i * static_cast<std::size_t>(layout.n_layers() * layout.n_heads()) +
                                          static_cast<std::size_t>(unit)) *
                                         static_cast<std::size_t>(n_positions);
                for (std::int32_t p : set)
                    if (parts.attention)
                        block->attention.push_back(attention[line + static_cast<std::size_t>(p)]);
            }
            to->rows = std::move(block);
        }
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

    ZipReader zip_;
    std::vector<std::shared_ptr<StepTrace>> steps_;
    std::vector<std::vector<RowParts>> parts_;
    std::map<int, int> lane_index_;  // lane id -> order of appearance
};

void add_prompt_rows(ZipWriter& zip, const RunInfo& run, const PromptRows& prompt,
                     const std::string& prefix) {
    const std::int32_t reduction = prompt.reduction;
    zip.add(prefix + "prompt_attention.npy",
            encode_npy(NpyType::f16, {run.layout.n_layers() * run.layout.n_heads(), prompt.size, prompt.size},
                       prompt.attention.data()));
    zip.add(prefix + "prompt_reduction.npy", encode_npy(NpyType::i32, {1}, &reduction));
}

}  // namespace

void write_trace(const StepList& steps, const fs::path& path) {
    RunHistory history;
    history.update(steps);
    fs::path part = path, folder = path;
    part += ".part";
    folder += ".scratch";
    const ScratchFolder scratch(folder);
    ZipWriter zip(part);
    const std::string json = format_trace_json(steps, true);
    const auto bytes = std::as_bytes(std::span(json.data(), json.size()));
    zip.add("run.json", {bytes.begin(), bytes.end()});
    for (int lane = 0; !history.empty() && lane < static_cast<int>(history.lanes().size()); ++lane) {
        add_lane(zip, history, lane, scratch.path());
        add_pins_and_hidden(zip, history, lane);
    }
    if (!steps.empty() && steps.front()->prompt_rows)
        add_prompt_rows(zip, history.run(), *steps.front()->prompt_rows, "");
    for (int lane = 0; !history.empty() && lane < static_cast<int>(history.lanes().size()); ++lane) {
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

StepList read_trace(const fs::path& path) {
    return TraceReader(path).read();
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
    StepList steps;
    try {
        steps = read_frames(spool / kFrames);
    } catch (const Error& why) {
        if (why.code() != ErrorCode::bad_file) throw;
    }
    fs::path to = recovered_path(trace);
    if (!steps.empty()) return write_trace(steps, to);
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
    const std::string payload = pack(step, !begun_);
    const std::uint64_t length = payload.size(), hash = fnv1a(payload);
    std::string head(kMagic);
    head.append(reinterpret_cast<const char*>(&length), sizeof length);
    head.append(reinterpret_cast<const char*>(&hash), sizeof hash);
    if (std::fwrite(head.data(), 1, head.size(), file_) != head.size() ||
        std::fwrite(payload.data(), 1, payload.size(), file_) != payload.size() || std::fflush(file_) != 0)
        fail_io(spool_ / kFrames, "write");
    begun_ = true;
    run_id_ = step.run->id;
}

void TraceWriter::finish() {
    KH_ASSERT(file_);
    std::FILE* file = std::exchange(file_, nullptr);
    if (std::fclose(file) != 0) fail_io(spool_ / kFrames, "write");
    write_trace(read_frames(spool_ / kFrames), path_);
    std::error_code error;
    fs::remove_all(spool_, error);
}

fs::path recover_spool(const fs::path& spool) {
    const StepList steps = read_frames(spool / kFrames);
    if (steps.empty())
        fail(ErrorCode::bad_file, "{} holds no whole record; nothing can be recovered", spool.string());
    fs::path path = spool;
    path.replace_extension();  // FILE.keyhole.spool -> FILE.keyhole
    if (fs::exists(path)) path = recovered_path(path);
    write_trace(steps, path);
    std::error_code error;
    fs::remove_all(spool, error);
    return path;
}

}  // namespace keyhole
