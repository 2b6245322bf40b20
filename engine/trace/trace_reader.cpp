#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/trace/run_history.h"
#include "engine/trace/spool.h"
#include "engine/trace/trace_file.h"
#include "engine/trace/trace_json.h"
#include "engine/trace/zip_reader.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>

namespace keyhole {

namespace fs = std::filesystem;

namespace {

/// Reads a trace: first scalars, then evictions, then rows, because each needs the one before.
class TraceReader {
  public:
    TraceReader(const fs::path& path, std::function<bool(double)> report)
        : path_(path), report_(std::move(report)), zip_(path) {
        const std::vector<std::byte> text = zip_.read("run.json");
        TraceParser parser(zip_.where("run.json"), zip_.budget());
        const ParsedTrace parsed =
            parser.parse({reinterpret_cast<const char*>(text.data()), text.size()}, nullptr);
        parts_ = parsed.parts;
        check_run(parsed.steps, zip_.where("run.json"), zip_.budget());
        for (const auto& step : parsed.steps) {
            steps_.push_back(std::make_shared<StepTrace>(*step));
            for (const LaneRecord& lane : step->lanes)
                lane_index_.emplace(lane.info->id, static_cast<int>(lane_index_.size()));
        }
        for (const auto& step : parts_)
            for (const RowParts& parts : step) n_rows_ += parts.any ? 1 : 0;
    }

    StepList read() {
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
    const RunInfo& run() const { return *steps_.front()->run; }
    const KvLayout& layout(const LaneRecord& lane) const {
        return lane.info->layout != nullptr ? *lane.info->layout : run().layout;
    }

    /// Returns a lane's record at a row, and which arrays it has; null if there is none.
    std::pair<LaneRecord*, RowParts> record(int row, int id) {
        const auto it = std::lower_bound(steps_.begin(), steps_.end(), row,
                                         [](const auto& step, int r) { return step->row < r; });
        if (it == steps_.end() || (*it)->row != row) return {nullptr, {}};
        for (std::size_t i = 0; i < (*it)->lanes.size(); ++i)
            if ((*it)->lanes[i].info->id == id)
                return {&(*it)->lanes[i], parts_[to_index(it - steps_.begin())][i]};
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
                zip_.bad(name, fmt::format("line {} names no row, KV head or position of the run", i / 4));
            lane->evictions.push_back(e);
        }
    }

    void read_pins(int id, int index) {
        const std::string name = fmt::format("lane{}/pins.npy", index);
        if (!zip_.contains(name)) return;
        const auto values = zip_.array(name, NpyType::i32, {-1, 4}).as<std::int32_t>();
        std::size_t i = 0;
        std::set<std::pair<std::int32_t, std::int32_t>> pinned;  // KV head, position
        std::shared_ptr<const PinList> pins;
        for (const auto& step : steps_) {
            LaneRecord* lane = record(step->row, id).first;
            const std::size_t first = i;
            for (; i + 4 <= values.size() && values[i] <= step->row; i += 4) {
                const std::pair pin(values[i + 1], values[i + 2]);
                if (!lane || values[i] != step->row || pin.first < 0 ||
                    pin.first >= layout(*lane).n_kv_heads() || pin.second < 0 || pin.second > step->row)
                    zip_.bad(name,
                             fmt::format("line {} names no row, KV head or position of the run", i / 4));
                if (values[i + 3] != 0)
                    pinned.insert(pin);
                else
                    pinned.erase(pin);
            }
            if (i > first) {
                zip_.budget().take(sizeof(Pin) * pinned.size(), fmt::format("its member {}", name));
                auto list = std::make_shared<PinList>();
                for (const auto& [kv_head, position] : pinned) list->push_back({kv_head, position});
                pins = list->empty() ? nullptr : std::move(list);
            }
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
        const auto width = to_index(array.shape[2]);
        for (std::size_t i = 0; i < rows.size(); ++i) {
            LaneRecord* to = record(rows[i], id).first;
            look_at_row(n_kv_heads, name);
            if (!to || to->hidden) zip_.bad(rows_name, fmt::format("row {} has no such record", rows[i]));
            auto set = std::make_shared<HiddenSet>();
            set->offset.push_back(0);
            for (int g = 0; g < n_kv_heads; ++g) {
                const std::size_t n = (history.held_positions(lane, g, rows[i]).size() + 7) / 8;
                if (n > width) zip_.bad(name, "it is narrower than what the lane stored");
                const auto from = bits.begin() + static_cast<std::ptrdiff_t>(
                                                     (i * to_index(n_kv_heads) + to_index(g)) * width);
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
                expected += step->lanes[i].info->id == id && parts_[to_index(&step - steps_.data())][i].any;
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
            count_row(++rows_read_);
            const auto [to, parts] = record(rows[i], id);
            if (!to || !parts.any || to->rows)
                zip_.bad(prefix + "rows.npy", fmt::format("row {} has no such record", rows[i]));
            if (parts.attention && !has_attention) zip_.bad(prefix + "attention.npy", "it is missing");
            if (parts.scores && !has_scores) zip_.bad(prefix + "scores.npy", "it is missing");
            look_at_row(layout.n_kv_heads(), prefix + "rows.npy");
            auto block = std::make_shared<RowBlock>();
            const auto n_units = to_index(layout.n_layers() * layout.n_heads());
            zip_.budget().take(n_units * (sizeof(std::int64_t) + sizeof(std::int32_t) + sizeof(float)),
                               "the rows of " + prefix);
            std::vector<std::vector<std::int32_t>> sets;
            block->offset.push_back(0);
            const auto gather = [&](auto& lines, const std::vector<std::int32_t>& set, bool wanted,
                                    auto& out) {
                if (!lines) return;
                if (wanted) zip_.budget().take(sizeof(out[0]) * set.size(), "the rows of " + prefix);
                if (lines->packed()) {
                    if (wanted) lines->append(set.size(), out);
                    return;
                }
                const auto& line = lines->next();
                if (!wanted) return;
                for (const std::int32_t p : set) out.push_back(line[to_index(p)]);
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
                const auto& set = sets[to_index(
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

    /// Takes from the budget: finding what a row held visits every position of every KV head.
    void look_at_row(int n_kv_heads, const std::string& name) {
        zip_.budget().look(
            static_cast<std::uint64_t>(n_kv_heads) * (static_cast<std::uint64_t>(steps_.back()->row) + 1),
            fmt::format("its member {}", name));
    }

    void count_row(std::int64_t n_rows) const {
        if (report_ && !report_(static_cast<double>(n_rows) / static_cast<double>(n_rows_)))
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
    const std::function<bool(double)> report_;
    ZipReader zip_;
    std::vector<std::shared_ptr<StepTrace>> steps_;
    std::vector<std::vector<RowParts>> parts_;
    std::map<int, int> lane_index_;            // lane id -> order of appearance
    std::int64_t n_rows_ = 0, rows_read_ = 0;  // of all lanes
};

}  // namespace

std::string read_trace_answers(const fs::path& path) {
    const ZipReader zip(path);
    if (!zip.contains("answers.json")) return "";
    const std::vector<std::byte> bytes = zip.read("answers.json");
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

StepList read_trace(const fs::path& path, const std::function<bool(double)>& report) {
    return TraceReader(path, report).read();
}

}  // namespace keyhole
