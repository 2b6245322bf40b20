#include "engine/trace/spool.h"

#include "engine/base/error.h"
#include "engine/base/fnv.h"
#include "engine/base/index.h"
#include "engine/trace/trace_json.h"

#include <sys/mman.h>

#include <algorithm>
#include <climits>
#include <cstring>

namespace keyhole {

namespace {

constexpr std::string_view kMagic = "KHFRAME4";
constexpr std::size_t kHead = 24;  // magic, length, hash

/// As fnv1a(), over words of eight bytes. Byte by byte it took a quarter of the time of a long run, whose
/// rows are megabytes.
std::uint64_t hash_of(std::string_view bytes) {
    std::uint64_t hash = kFnvBasis;
    const auto mix = [&](std::uint64_t word) {
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;  // else the high bits of a word would not affect the bits below them
    };
    std::size_t at = 0;
    for (; at + sizeof(std::uint64_t) <= bytes.size(); at += sizeof(std::uint64_t)) {
        std::uint64_t word = 0;
        std::memcpy(&word, bytes.data() + at, sizeof word);
        mix(word);
    }
    for (; at < bytes.size(); ++at) mix(static_cast<unsigned char>(bytes[at]));
    return hash;
}

class Packer {
  public:
    explicit Packer(std::string& to) : bytes_(to) {}
    template <class T, class A>
    void put(const std::vector<T, A>& values) {
        number(values.size());
        bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
    }
    void text(std::string_view value) {
        number(value.size());
        bytes_ += value;
    }
    void number(std::uint64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }

  private:
    std::string& bytes_;
};

class Unpacker {
  public:
    /// name: the spool's name, for messages.
    Unpacker(std::string_view bytes, std::string_view name) : rest_(bytes), name_(name) {}
    std::uint64_t number() {
        std::uint64_t value = 0;
        std::memcpy(&value, take(sizeof value).data(), sizeof value);
        return value;
    }
    std::string_view text() { return take(number()); }
    template <class T, class A>
    void get(std::vector<T, A>& values) {
        const std::uint64_t n = number();
        const std::string_view bytes = n <= rest_.size() ? take(n * sizeof(T)) : take(n);
        values.resize(n);
        if (n) std::memcpy(values.data(), bytes.data(), bytes.size());
    }

    /// Skips a vector of T.
    template <class T>
    void skip() {
        const std::uint64_t n = number();
        take(n <= rest_.size() ? n * sizeof(T) : n);
    }
    std::string_view rest() const { return rest_; }

  private:
    std::string_view take(std::uint64_t n) {
        if (n > rest_.size()) fail(ErrorCode::bad_file, "{} is damaged: a record is cut off", name_);
        const std::string_view out = rest_.substr(0, n);
        rest_.remove_prefix(n);
        return out;
    }
    std::string_view rest_, name_;
};

void pack_prompt_rows(Packer& out, const PromptRows* rows) {
    out.number(rows != nullptr ? 1 : 0);
    if (rows == nullptr) return;
    out.number(static_cast<std::uint64_t>(rows->reduction));
    out.number(static_cast<std::uint64_t>(rows->size));
    out.put(rows->attention);
}

void pack(const StepTrace& step, bool with_run, std::string& to) {
    // A list that does not own the step: it is only read.
    const StepList one{std::shared_ptr<const StepTrace>(std::shared_ptr<void>(), &step)};
    Packer out(to);
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
}

/// Reads the arrays of a lane, in the order of pack(). wanted: which of the large ones to read; null: all.
void unpack_lane(Unpacker& in, LaneRecord& lane, const RowParts& parts, const LanePart* wanted) {
    const auto is_wanted = [&](LanePart part) { return wanted == nullptr || *wanted == part; };
    in.get(lane.evictions);
    PinList pins;
    in.get(pins);
    if (!pins.empty()) lane.pins = std::make_shared<const PinList>(std::move(pins));
    HiddenSet hidden;
    in.get(hidden.offset);
    in.get(hidden.bits);
    if (!hidden.offset.empty()) lane.hidden = std::make_shared<const HiddenSet>(std::move(hidden));
    if (parts.shadow) {
        auto shadow = std::make_shared<ShadowRow>();
        for (const auto part : kShadowParts) in.get((*shadow).*part);
        lane.shadow = std::move(shadow);
    }
    if (!parts.any) return;
    auto block = std::make_shared<RowBlock>();
    in.get(block->offset);
    in.get(block->head_offset);
    if (is_wanted(LanePart::attention))
        in.get(block->attention);
    else
        in.skip<std::uint16_t>();
    if (is_wanted(LanePart::scores))
        in.get(block->scores);
    else
        in.skip<float>();
    in.get(block->threshold);
    lane.rows = std::move(block);
}

/// lanes: if not null, receives where each lane's arrays begin, for unpack_lane(), and which there are.
/// wanted: as in unpack_lane().
std::shared_ptr<StepTrace> unpack(std::string_view bytes, std::string_view name, TraceParser& parser,
                                  std::shared_ptr<const RunInfo> run,
                                  std::vector<std::pair<std::string_view, RowParts>>* lanes = nullptr,
                                  const LanePart* wanted = nullptr) {
    Unpacker in(bytes, name);
    const ParsedTrace parsed = parser.parse(in.text(), std::move(run));
    if (parsed.steps.size() != 1)
        fail(ErrorCode::bad_file, "{}: a record of the spool has {} steps", name, parsed.steps.size());
    auto step = std::make_shared<StepTrace>(*parsed.steps.front());
    for (std::size_t i = 0; i < step->lanes.size(); ++i) {
        if (lanes != nullptr) lanes->emplace_back(in.rest(), parsed.parts[0][i]);
        unpack_lane(in, step->lanes[i], parsed.parts[0][i], wanted);
    }
    const auto prompt_rows = [&]() -> std::shared_ptr<const PromptRows> {
        if (in.number() == 0) return nullptr;
        auto rows = std::make_shared<PromptRows>();
        rows->reduction = static_cast<int>(std::min<std::uint64_t>(in.number(), INT_MAX));
        rows->size = static_cast<int>(std::min<std::uint64_t>(in.number(), INT_MAX));
        in.get(rows->attention);
        return rows;
    };
    step->prompt_rows = prompt_rows();
    for (LaneRecord& lane : step->lanes) lane.prompt_rows = prompt_rows();
    return step;
}

/// Releases pages that were read. They count as the process's memory until then, and a spool may exceed the
/// memory.
void give_up_pages(std::string_view bytes) {
    constexpr std::uintptr_t kPage = 4096;
    const auto begin = (reinterpret_cast<std::uintptr_t>(bytes.data()) + kPage - 1) / kPage * kPage,
               end = reinterpret_cast<std::uintptr_t>(bytes.data() + bytes.size()) / kPage * kPage;
    if (end > begin) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

/// Makes both steps share the objects that do not change from row to row, as they did before they were
/// written to separate frames.
void share(StepTrace& step, const StepTrace& before) {
    if (step.other_branches && before.other_branches && *step.other_branches == *before.other_branches)
        step.other_branches = before.other_branches;
    for (LaneRecord& lane : step.lanes)
        for (const LaneRecord& known : before.lanes) {
            const LaneInfo &a = *lane.info, &b = *known.info;
            if (a.id != b.id) continue;
            if (a.spec == b.spec && a.effective == b.effective && a.forked_from == b.forked_from &&
                a.forked_at == b.forked_at && a.replayed == b.replayed)
                lane.info = known.info;
            if (lane.pins && known.pins && *lane.pins == *known.pins) lane.pins = known.pins;
        }
}

/// Returns whether offset ascends from 0 to n in n_parts steps.
template <class T>
bool is_partition(const std::vector<T>& offset, std::size_t n_parts, std::size_t n) {
    return offset.size() == n_parts + 1 && offset.front() == 0 &&
           std::is_sorted(offset.begin(), offset.end()) && to_index(offset.back()) == n;
}

/// Returns why the arrays of a lane's record do not fit its scalars; empty if they do.
std::string_view fault_of(const LaneRecord& lane, const KvLayout& layout, int row) {
    const int n_kv_heads = layout.n_kv_heads();
    const auto n_groups = to_index(n_kv_heads),
               n_heads = to_index(layout.n_layers()) * to_index(layout.n_heads());
    const auto is_place = [&](int kv_head, int position) {
        return kv_head >= 0 && kv_head < n_kv_heads && position >= 0 && position <= row;
    };
    for (const Eviction& e : lane.evictions)
        if (!is_place(e.kv_head, e.position) || e.row < -1 || e.row > row) return "an eviction";
    for (const Pin& pin : lane.pins ? *lane.pins : PinList())
        if (!is_place(pin.kv_head, pin.position)) return "a pin";
    if (lane.hidden && !is_partition(lane.hidden->offset, n_groups, lane.hidden->bits.size()))
        return "the hidden positions";
    for (const auto part : kShadowParts)
        if (lane.shadow && ((*lane.shadow).*part).size() != n_heads) return "the shadow";
    if (!lane.rows) return {};
    const RowBlock& rows = *lane.rows;
    const std::size_t n_held = rows.offset.empty() ? 0 : to_index(rows.offset.back()),
                      n_read = rows.head_offset.empty() ? 0 : to_index(rows.head_offset.back());
    if (!is_partition(rows.offset, n_groups, n_held) || !is_partition(rows.head_offset, n_heads, n_read) ||
        (!rows.scores.empty() && rows.scores.size() != n_held) ||
        (!rows.attention.empty() && rows.attention.size() != n_read))
        return "the rows";
    return {};
}

bool fits(const PromptRows& rows, const RunInfo& run) {
    const auto n_heads = std::int64_t{run.layout.n_layers()} * run.layout.n_heads();
    const std::int64_t n = run.n_prompt(), r = rows.reduction;
    return r >= 1 && r <= 2 * n && rows.size == (n + r - 1) / r &&
           static_cast<std::int64_t>(rows.attention.size()) == n_heads * rows.size * rows.size;
}

/// Throws Error(bad_file) if the record does not fit its run. The hash shows only that a frame is complete,
/// not that its content is valid. n_file: bytes of the file, which limit the number of rows.
void check(const StepTrace& step, std::size_t n_file, const std::string& name) {
    const RunInfo& run = *step.run;
    const auto bad = [&](std::string_view what) {
        fail(ErrorCode::bad_file, "{} is damaged: {} of row {} does not fit the run", name, what, step.row);
    };
    constexpr std::int64_t kLargestTable = std::int64_t{1} << 28;
    const std::int64_t n_positions = std::int64_t{step.row} + 1;
    const auto too_far = [&](const KvLayout& layout) {
        return n_positions * layout.n_kv_heads() > kLargestTable;
    };
    if (n_positions > static_cast<std::int64_t>(n_file) || too_far(run.layout)) bad("the place");
    if (step.prompt_rows && !fits(*step.prompt_rows, run)) bad("the prompt");
    for (const LaneRecord& lane : step.lanes) {
        const KvLayout& layout = lane.info->layout != nullptr ? *lane.info->layout : run.layout;
        if (too_far(layout)) bad("the place");
        if (const std::string_view fault = fault_of(lane, layout, step.row); !fault.empty()) bad(fault);
        if (lane.prompt_rows && !fits(*lane.prompt_rows, run)) bad("the prompt");
    }
}

/// Replaces the arrays by row with empty ones; which arrays there are, and their sizes, stays known.
void make_light(StepTrace& step) {
    for (LaneRecord& lane : step.lanes) {
        if (lane.rows) {
            auto rows = std::make_shared<RowBlock>();
            rows->threshold = lane.rows->threshold;
            rows->attention.resize(lane.rows->attention.empty() ? 0 : 1);
            rows->scores.resize(lane.rows->scores.empty() ? 0 : 1);
            lane.rows = std::move(rows);
        }
        if (lane.shadow) lane.shadow = std::make_shared<const ShadowRow>();
        if (lane.hidden) lane.hidden = std::make_shared<const HiddenSet>(HiddenSet{lane.hidden->offset, {}});
    }
}

}  // namespace

static void begin_frame(std::string& to) {
    to.append(kMagic).append(kHead - kMagic.size(), '\0');
}

/// Writes length and hash of the frame that begins there, now that its payload is behind it.
static void end_frame(std::string& to, std::size_t begin) {
    const std::string_view payload = std::string_view(to).substr(begin + kHead);
    const std::uint64_t length = payload.size(), hash = hash_of(payload);
    std::memcpy(to.data() + begin + 8, &length, sizeof length);
    std::memcpy(to.data() + begin + 16, &hash, sizeof hash);
}

void append_frame(const StepTrace& step, bool with_run, std::string& to) {
    const std::size_t begin = to.size();
    begin_frame(to);
    pack(step, with_run, to);
    end_frame(to, begin);
}

std::string make_frame(const StepTrace& step, bool with_run) {
    std::string frame;
    append_frame(step, with_run, frame);
    return frame;
}

std::string frame_of(std::string_view payload) {
    std::string frame;
    begin_frame(frame);
    frame.append(payload);
    end_frame(frame, 0);
    return frame;
}

StepTrace read_record(std::string_view frame, const std::string& name, std::shared_ptr<const RunInfo> run,
                      bool light) {
    constexpr LanePart kOthers = LanePart::others;
    const std::string_view payload = frame.substr(std::min(kHead, frame.size()));
    std::uint64_t hash = 0;
    if (!payload.empty()) std::memcpy(&hash, frame.data() + 16, sizeof hash);
    if (payload.empty() || hash_of(payload) != hash) fail(ErrorCode::bad_file, "{} is damaged", name);
    ReadBudget budget(name, frame.size());
    TraceParser parser(name, budget);
    StepTrace step = *unpack(payload, name, parser, std::move(run), nullptr, light ? &kOthers : nullptr);
    for (LaneRecord& lane : step.lanes) {
        if (!light) break;
        lane.rows.reset();
        lane.shadow.reset();
    }
    return step;
}

/// Takes the next frame off and returns its payload; nullopt if none that is complete follows.
static std::optional<std::string_view> take_frame(std::string_view& rest) {
    if (rest.size() < kHead || !rest.starts_with(kMagic)) return std::nullopt;
    std::uint64_t length = 0, hash = 0;
    std::memcpy(&length, rest.data() + 8, sizeof length);
    std::memcpy(&hash, rest.data() + 16, sizeof hash);
    if (length > rest.size() - kHead) return std::nullopt;
    const std::string_view payload = rest.substr(kHead, length);
    if (hash_of(payload) != hash) return std::nullopt;
    rest.remove_prefix(kHead + length);
    return payload;
}

static std::string_view text_of(const MappedFile& file) {
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

std::shared_ptr<const RunInfo> run_of_frames(const std::filesystem::path& path) {
    const MappedFile file(path);
    const std::string name = path.string();
    std::string_view rest = text_of(file);
    ReadBudget budget(name, rest.size());
    TraceParser parser(name, budget);
    const std::optional<std::string_view> first = take_frame(rest);
    if (!first) fail(ErrorCode::bad_file, "{} holds no records", name);
    constexpr LanePart kOthers = LanePart::others;
    return unpack(*first, name, parser, nullptr, nullptr, &kOthers)->run;
}

Frames::Frames(const std::filesystem::path& path) : name_(path.string()), file_(path) {
    const std::string_view all = text_of(file_);
    std::string_view rest = all;
    ReadBudget budget(name_, all.size());
    TraceParser parser(name_, budget);
    while (const std::optional<std::string_view> frame = take_frame(rest)) {
        const std::string_view payload = *frame;
        std::vector<std::pair<std::string_view, RowParts>> lanes;
        const std::shared_ptr<StepTrace> step = unpack(payload, name_, parser, run_, &lanes);
        give_up_pages(payload);
        run_ = step->run;
        check(*step, all.size(), name_);
        make_light(*step);
        if (!light_.empty()) share(*step, *light_.back());
        while (!light_.empty() && light_.back()->row >= step->row) {  // rewound
            light_.pop_back();
            payloads_.pop_back();
            lanes_.pop_back();
        }
        light_.push_back(step);
        payloads_.push_back(payload);
        lanes_.push_back(std::move(lanes));
    }
    if (!light_.empty()) check_run(light_, name_, budget);
}

std::shared_ptr<const StepTrace> Frames::whole(std::size_t i) const {
    ReadBudget budget(name_, file_.bytes().size());
    TraceParser parser(name_, budget);
    return unpack(payloads_[i], name_, parser, run_);
}

LaneRecord Frames::lane(std::size_t i, std::size_t lane, LanePart part) const {
    const auto& [bytes, parts] = lanes_[i][lane];
    LaneRecord record;
    Unpacker in(bytes, name_);
    unpack_lane(in, record, parts, &part);
    give_up_pages(bytes.substr(0, bytes.size() - in.rest().size()));
    return record;
}

}  // namespace keyhole
