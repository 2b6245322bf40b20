#include "engine/export/tables.h"

#include "engine/base/csv_field.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/attention.h"
#include "engine/policy/kept_set.h"

#include <nlohmann/json.hpp>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>

namespace keyhole {

namespace {

/// Writes a text file. It reports every failure and leaves no incomplete file under its name.
class TextFile {
  public:
    explicit TextFile(std::filesystem::path path) : path_(std::move(path)), part_(path_) {
        part_ += ".part";
        file_ = std::fopen(part_.c_str(), "wb");
        if (!file_) fail_io();
    }
    ~TextFile() {
        if (!file_) return;
        std::fclose(file_);
        std::remove(part_.c_str());
    }
    TextFile(const TextFile&) = delete;
    TextFile& operator=(const TextFile&) = delete;

    void write(std::string_view text) {
        if (std::fwrite(text.data(), 1, text.size(), file_) != text.size()) fail_io();
    }
    void finish() {
        std::FILE* file = std::exchange(file_, nullptr);
        if (std::fclose(file) != 0 || std::rename(part_.c_str(), path_.c_str()) != 0) {
            const int reason = errno;
            std::remove(part_.c_str());
            errno = reason;
            fail_io();
        }
    }

  private:
    [[noreturn]] void fail_io() const {
        fail(ErrorCode::io, "cannot write {}: {}; check that the folder is writable and not full",
             path_.string(), std::strerror(errno));
    }
    std::filesystem::path path_, part_;
    std::FILE* file_ = nullptr;
};

/// The values of one (row, layer, head) by position, in the columns that exist.
struct Columns {
    struct Column {
        std::string_view name;
        std::vector<float> values;
        bool there = false;
    };
    std::vector<Column> all;
};

/// What made a table: a column at its end, with a text in the first line alone.
class MakerColumn {
  public:
    explicit MakerColumn(const std::string& made_by) : made_by_(made_by) {}
    std::string header() const { return made_by_.empty() ? "" : ",made_by"; }
    /// Returns the end of the next line of CSV, or of the next object of JSON.
    std::string csv() { return made_by_.empty() ? "" : "," + (is_first() ? csv_field(made_by_) : ""); }
    std::string json() {
        if (!is_first() || made_by_.empty()) return "";
        return ",\"made_by\":" +
               nlohmann::json(made_by_).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    }

  private:
    bool is_first() { return std::exchange(is_first_, false); }
    const std::string& made_by_;
    bool is_first_ = true;
};

/// text: the token's, as a field of the format.
void append_line(std::string& out, TableFormat format, const int (&keys)[6], const std::string& text,
                 const Columns& columns, int position, MakerColumn& maker) {
    if (format == TableFormat::csv) {
        out +=
            fmt::format("{},{},{},{},{},{},{}", keys[0], keys[1], keys[2], keys[3], keys[4], keys[5], text);
        for (const auto& column : columns.all) {
            const float v = column.values[to_index(position)];
            out += column.there && !std::isnan(v) ? fmt::format(",{}", v) : ",";
        }
        out += maker.csv() + '\n';
        return;
    }
    out += fmt::format(
        "{{\"row\":{},\"layer\":{},\"head\":{},\"kv_head\":{},\"position\":{},\"token\":{},"
        "\"text\":{}",
        keys[0], keys[1], keys[2], keys[3], keys[4], keys[5], text);
    for (const auto& column : columns.all) {
        const float v = column.values[to_index(position)];
        out += fmt::format(",\"{}\":", column.name);
        out += column.there && std::isfinite(v) ? fmt::format("{}", v) : "null";
    }
    out += maker.json() + '}';
}

/// Returns the text of each token of the lane, as a field of CSV or JSON.
std::vector<std::string> token_fields(const LaneRows& rows, bool csv) {
    const std::vector<std::string>& known = rows.history().run().token_display;
    std::vector<std::string> fields;
    for (const int token : rows.lane().tokens) {
        const bool is_known = token >= 0 && to_index(token) < known.size();
        const std::string text = is_known ? known[to_index(token)] : std::string();
        fields.push_back(
            csv ? csv_field(text)
                : nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    }
    return fields;
}

}  // namespace

void write_table(const LaneRows& rows, TableFormat format, const std::filesystem::path& path,
                 const std::string& made_by, const std::function<void(double)>& progress) {
    const RunHistory& history = rows.history();
    const ExportRange& range = rows.range();
    const bool csv = format == TableFormat::csv;
    Columns columns;
    for (std::string_view name : {"attention", "logit", "noise", "score"}) {
        if ((name == "logit" && !rows.arrays().logits) || (name == "noise" && !rows.arrays().noise) ||
            (name == "score" && !rows.arrays().scores))
            continue;
        columns.all.push_back({name, std::vector<float>(to_index(range.n_positions())), false});
    }
    TextFile file(path);
    MakerColumn maker(made_by);
    std::string text = csv ? "row,layer,head,kv_head,position,token,text" : "[";
    const std::vector<std::string> words = token_fields(rows, csv);
    if (csv) {
        for (const auto& column : columns.all) text += fmt::format(",{}", column.name);
        text += maker.header() + '\n';
    }
    bool first = true;
    for (int row = range.first_row; row <= range.last_row; ++row) {
        if (progress) progress(static_cast<double>(row - range.first_row) / std::max(range.n_rows(), 1));
        if (!rows.has(row)) continue;
        for (int layer : range.layers)
            for (int head : range.heads) {
                const int g = rows.layout().kv_head_from_head(layer, head);
                for (auto& column : columns.all) {
                    if (column.name == "attention")
                        column.there = rows.attention(row, layer, head, column.values);
                    if (column.name == "logit") column.there = rows.logits(row, layer, head, column.values);
                    if (column.name == "noise") column.there = rows.noise(row, layer, head, column.values);
                    if (column.name == "score") column.there = rows.scores(row, g, column.values);
                }
                if (!columns.all.front().there) continue;
                for (std::int32_t p : history.attended_positions(rows.index(), g, row)) {
                    if (!csv) text += first ? "\n" : ",\n";
                    first = false;
                    append_line(text, format, {row, layer, head, g, p, rows.lane().tokens[to_index(p)]},
                                words[to_index(p)], columns, p, maker);
                }
                if (text.size() > (1u << 20)) {
                    file.write(text);
                    text.clear();
                }
            }
    }
    if (!csv) text += "\n]\n";
    file.write(text);
    file.finish();
}

void write_metrics_table(const LaneRows& rows, const std::filesystem::path& path,
                         const std::string& made_by) {
    const RunHistory& history = rows.history();
    const ExportRange& range = rows.range();
    const KvLayout& layout = rows.layout();
    TextFile file(path);
    MakerColumn maker(made_by);
    file.write(
        "row,layer,head,kv_head,retained_mass,lost_mass,cosine_ideal,cosine_full,output_similarity,"
        "sink_share,stored,recent_share" +
        maker.header() + "\n");
    std::vector<float> attention(to_index(range.n_positions()));
    std::vector<std::int32_t> positions(attention.size());
    std::iota(positions.begin(), positions.end(), 0);
    for (int row = range.first_row; row <= range.last_row; ++row) {
        // Skip prompt rows: their stored sets are known only for one-shot prompts, which have evicted nothing
        // yet.
        const LaneRecord* record =
            row < history.n_prompt() || !rows.has(row) ? nullptr : history.lane_record(row, rows.index());
        if (record == nullptr) continue;
        std::string text;
        for (const int layer : range.layers)
            for (const int head : range.heads) {
                const int g = layout.kv_head_from_head(layer, head);
                KeptSet stored;
                for (int p = 0; p <= row; ++p)
                    if (history.stored(rows.index(), g, p, row)) stored.insert(p);
                text += fmt::format("{},{},{},{}", row, layer, head, g);
                const auto add = [&](bool there, double value) {
                    // Go through float: sums in double end in meaningless digits.
                    text +=
                        there && std::isfinite(value) ? fmt::format(",{}", static_cast<float>(value)) : ",";
                };
                const ShadowRow* shadow = record->shadow.get();
                const auto at = to_index(layer * layout.n_heads() + head);
                const auto of_head = [&](std::vector<float> ShadowRow::*part) {
                    return shadow != nullptr ? (shadow->*part)[at] : RowMeasures::kNone;
                };
                const float retained = of_head(&ShadowRow::retained_mass);
                for (const float value :
                     {retained, 1.0f - retained, of_head(&ShadowRow::cosine_ideal),
                      of_head(&ShadowRow::cosine_full), of_head(&ShadowRow::output_similarity)})
                    add(true, value);
                const bool has_attention = rows.attention(row, layer, head, attention);
                add(has_attention, sink_share(positions, attention));
                const int k = record->info->policy.at(layer, head).budget;
                text += fmt::format(",{}", stored.size());
                add(k <= row, recent_share(stored, row, k));
                text += maker.csv() + '\n';
            }
        file.write(text);
    }
    file.finish();
}

}  // namespace keyhole
