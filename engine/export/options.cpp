#include "engine/export/options.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/policy/spec_text.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <set>
#include <system_error>
#include <utility>

namespace keyhole {

namespace {

constexpr std::array kWords = {
    ExportWord{"run", "run.json: tokens, lanes, scalars of every row", &ExportOptions::run},
    ExportWord{"mask", "evicted_at.npy and pictures of the masks", &ExportOptions::mask},
    ExportWord{"mask-table", "evicted_at.npy alone, without the pictures", &ExportOptions::mask_table, false},
    ExportWord{"heatmap", "pictures of every head, and the atlas", &ExportOptions::heatmap, true, true, true},
    ExportWord{"attention", "attention.npy: every probability", &ExportOptions::attention, true, true, true},
    ExportWord{"logits", "logits.npy: before the softmax", &ExportOptions::logits, true, false},
    ExportWord{"scores", "scores.npy and curves", &ExportOptions::scores, true, true, true},
    ExportWord{"choice", "choice.npy: what a selection ranks of the tokens that compete",
               &ExportOptions::choice, true, true, true},
    ExportWord{"noise", "noise.npy", &ExportOptions::noise, true, false},
    ExportWord{"q", "q.npy, q0.npy: each row's queries, after and before the rotation", &ExportOptions::q,
               false, false},
    ExportWord{"k", "k.npy, k0.npy: the keys of the rows' tokens, the same", &ExportOptions::k, false, false},
    ExportWord{"v", "v.npy: the values of the rows' tokens", &ExportOptions::v, false, false},
    ExportWord{"queries",
               "queries.safetensors: mean and spread of the prompt's queries, for calibration=FILE",
               &ExportOptions::queries, false, false},
    ExportWord{"next", "next.npy: next-token log-probabilities", &ExportOptions::next, true, true, true},
    ExportWord{"csv", "tables: one line a cell, and the measures of every head's rows", &ExportOptions::csv,
               true, true, true},
    ExportWord{"json", "the cells as JSON", &ExportOptions::json, true, true, true},
    ExportWord{"shadow", "shadow.npy, ideal.npy: full rows of lanes with a shadow, and their best k",
               &ExportOptions::shadow, true, false},
    ExportWord{"frames", "the mask over time: a picture a row", &ExportOptions::frames, false},
    ExportWord{"gif", "the mask over time: an animated GIF of all heads", &ExportOptions::gif, false},
    ExportWord{"gif-attention", "a GIF a head: its heat map, row by row", &ExportOptions::gif_attention,
               false, true, true},
    ExportWord{"gif-mask", "a GIF a KV head: its mask, row by row", &ExportOptions::gif_mask, false},
    ExportWord{"gif-scores", "a GIF a KV head: its scores, row by row", &ExportOptions::gif_scores, false}};

constexpr std::int64_t kAskAbove = 2'000'000'000;

std::vector<int> chosen(const std::vector<int>& asked, int n, std::string_view what) {
    std::vector<int> out;
    if (asked.empty())
        for (int i = 0; i < n; ++i) out.push_back(i);
    for (int i : asked) {
        if (i < 0 || i >= n)
            fail(ErrorCode::wrong_use, "--{}s: {} {} does not exist; the model has {}s 0 to {}", what, what,
                 i, what, n - 1);
        out.push_back(i);
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
}

}  // namespace

RowRequest ExportOptions::requested() const {
    RowRequest w;
    w.attention = attention || heatmap || gif_attention || csv || json || (shadow && all_rows);
    w.logits = logits;
    w.noise = noise;
    w.scores = streams_scores();
    w.shadow = shadow;
    w.inputs = streams_inputs();
    return w;
}

std::span<const ExportWord> export_words() {
    return kWords;
}

std::string export_word_list() {
    std::string list;
    for (const ExportWord& word : kWords) list += std::string(word.name) + ", ";
    return list + "all";
}

void parse_export_list(std::string_view list, ExportOptions& options, bool of_records,
                       std::span<const std::string_view> others) {
    while (!list.empty()) {
        const auto comma = std::min(list.find(','), list.size());
        std::string_view word = list.substr(0, comma);
        list.remove_prefix(std::min(comma + 1, list.size()));
        while (word.starts_with(' ')) word.remove_prefix(1);
        while (word.ends_with(' ')) word.remove_suffix(1);
        if (word.empty()) continue;
        if (word == "all") {
            // A picture per row is much more than one more file.
            for (const ExportWord& known : kWords)
                options.*known.flag |= known.in_all && (known.in_records || !of_records);
            continue;
        }
        const auto it = std::find_if(kWords.begin(), kWords.end(),
                                     [&](const ExportWord& known) { return known.name == word; });
        if (it != kWords.end()) {
            options.*(it->flag) = true;
            continue;
        }
        std::vector<std::string_view> names(others.begin(), others.end());
        for (const ExportWord& known : kWords) names.push_back(known.name);
        names.emplace_back("all");
        std::string list_of_all = export_word_list();
        for (const std::string_view other : others) list_of_all += fmt::format(", {}", other);
        const std::string hint = spec_text::near_hint(word, names);
        fail(ErrorCode::wrong_use, "--export: unknown word '{}'{} Known: {}", shown_text(word),
             hint.empty() ? "." : hint, list_of_all);
    }
    if (of_records) check_of_records(options);
}

void check_of_records(const ExportOptions& options) {
    for (const ExportWord& word : kWords)
        if (options.*word.flag && !word.in_records)
            fail(ErrorCode::wrong_use, "records hold no {}; run `keyhole decode --export {}` to have them",
                 word.name, word.name);
    for (const ExportWord& word : kWords)
        if (options.all_rows && options.*word.flag && word.of_rows)
            fail(ErrorCode::wrong_use,
                 "records hold no {0} of the prompt's rows; leave those rows out, or run `keyhole decode "
                 "--rows all --export {0}` to have them",
                 word.name);
}

std::vector<int> kv_heads_read(const KvLayout& layout, const std::vector<int>& layers,
                               const std::vector<int>& heads) {
    std::set<int> kv_heads;
    for (int l : layers)
        for (int h : heads) kv_heads.insert(layout.kv_head_from_head(l, h));
    return {kv_heads.begin(), kv_heads.end()};
}

ExportRange export_range(const ExportOptions& options, const ExportShape& shape) {
    ExportRange range;
    range.layers = chosen(options.layers, shape.layout.n_layers(), "layer");
    range.heads = chosen(options.heads, shape.layout.n_heads(), "head");
    range.kv_heads = kv_heads_read(shape.layout, range.layers, range.heads);
    range.last_row = shape.last_row;
    range.watch = options.watch;
    range.first_row = options.all_rows ? 0 : shape.n_prompt;
    if (options.last_rows > 0)
        range.first_row = std::max(range.first_row, shape.last_row + 1 - options.last_rows);
    return range;
}

std::int64_t estimate_bytes(const ExportOptions& options, const ExportShape& shape) {
    const ExportRange range = export_range(options, shape);
    const auto heads = static_cast<std::int64_t>(range.layers.size() * range.heads.size());
    const auto kv_heads = static_cast<std::int64_t>(range.kv_heads.size());
    const std::int64_t plane = std::int64_t{range.n_rows()} * range.n_positions();
    const std::int64_t element = options.f16 ? 2 : 4;
    const std::int64_t picture = estimate_picture_bytes(options.pictures, plane);
    std::int64_t lane = 0;
    for (bool wanted : {options.streams_attention(), options.logits, options.noise})
        if (wanted) lane += heads * plane * element;
    if (options.shadow) lane += heads * plane * (element + 1);
    if (options.streams_scores()) lane += kv_heads * (plane * element + 100'000);
    if (options.choice) lane += kv_heads * plane * element;
    const std::int64_t vectors = std::int64_t{range.n_rows()} * shape.head_dim * element;
    lane += vectors * (2 * options.q * heads + (2 * options.k + options.v) * kv_heads);
    lane += options.queries * heads * 4 * shape.head_dim * (shape.head_dim + 2);
    // Tables have a line for each position that a row attends to: at most all its positions.
    const std::int64_t lines =
        heads * range.n_rows() * (std::int64_t{range.first_row} + range.last_row + 2) / 2;
    if (options.csv) lane += lines * 50 + heads * range.n_rows() * 60;
    if (options.json) lane += lines * 110;
    if (options.mask || options.mask_table)
        lane += shape.layout.n_kv_heads() * std::int64_t{range.n_positions()} * 4;
    if (options.mask) lane += kv_heads * picture / 2;
    if (options.heatmap) lane += (heads + 4) * picture;
    if (options.frames) lane += std::int64_t{range.n_rows()} * (kv_heads * range.n_positions() / 8 + 40'000);
    // Frames hold only what changed: a few lines of the head, and the title.
    const std::int64_t animation = std::min<std::int64_t>(range.n_rows(), 500) * 8'000 + picture;
    lane += animation * (options.gif + options.gif_attention * heads +
                         (options.gif_mask + options.gif_scores) * kv_heads);
    if (options.next) lane += std::int64_t{range.n_rows()} * 64 * 8;
    if (options.run) lane += std::int64_t{shape.last_row - shape.n_prompt + 1} * 500;
    return lane * shape.n_lanes + options.more_bytes;
}

std::int64_t estimate_files(const ExportOptions& options, const ExportShape& shape) {
    const ExportRange range = export_range(options, shape);
    const auto heads = static_cast<std::int64_t>(range.layers.size() * range.heads.size());
    const auto kv_heads = static_cast<std::int64_t>(range.kv_heads.size());
    const std::int64_t n_formats = options.pictures.n_files();
    std::int64_t lane = 0;
    for (const auto& [wanted, n] :
         std::initializer_list<std::pair<bool, std::int64_t>>{{options.attention, 1},
                                                              {options.logits, 1},
                                                              {options.noise, 1},
                                                              {options.q, 2},
                                                              {options.k, 2},
                                                              {options.v, 1},
                                                              {options.queries, 1},
                                                              {options.scores, 1 + kv_heads * n_formats},
                                                              {options.choice, 1},
                                                              {options.shadow, 2},
                                                              {options.csv, 2},
                                                              {options.json, 1},
                                                              {options.mask || options.mask_table, 1},
                                                              {options.mask, kv_heads * n_formats},
                                                              {options.heatmap, (heads + 1) * n_formats},
                                                              {options.frames, range.n_rows()},
                                                              {options.gif, 1},
                                                              {options.gif_attention, heads},
                                                              {options.gif_mask, kv_heads},
                                                              {options.gif_scores, kv_heads},
                                                              {options.next, 1}})
        if (wanted) lane += n;
    return 1 + lane * shape.n_lanes + options.more_files;
}

void check_export_size(const ExportOptions& options, const ExportShape& shape) {
    const std::int64_t bytes = estimate_bytes(options, shape);
    constexpr std::string_view kLess =
        "choose fewer layers, heads or rows, or 16-bit arrays (--layers, --heads, --last-rows, "
        "--dtype f16)";
    // The folder may not exist yet: ask its nearest existing parent.
    std::error_code error;
    std::filesystem::path at = std::filesystem::absolute(options.folder, error);
    while (!at.empty() && at != at.root_path() && !std::filesystem::exists(at, error)) at = at.parent_path();
    const std::filesystem::space_info space = std::filesystem::space(at, error);
    const bool is_disk =
        !error && space.capacity > 0;  // file systems of the kernel, such as /proc, have none
    if (is_disk && static_cast<std::uintmax_t>(bytes) > space.available)
        fail(ErrorCode::io, "the export needs about {}, the disk of {} has {} free; {}", format_bytes(bytes),
             options.folder.string(), format_bytes(static_cast<std::int64_t>(space.available)), kLess);
    if (bytes > kAskAbove && !options.yes)
        fail(ErrorCode::wrong_use, "the export to {} takes about {}; say --yes, or {}",
             options.folder.string(), format_bytes(bytes), kLess);
}

std::string format_bytes(std::int64_t bytes) {
    constexpr std::array kUnits = {"B", "kB", "MB", "GB", "TB"};
    auto value = static_cast<double>(bytes);
    std::size_t unit = 0;
    while (value >= 999.5 && unit + 1 < kUnits.size()) {
        value /= 1000;
        ++unit;
    }
    return unit == 0 ? fmt::format("{} B", bytes)
                     : fmt::format("{:.{}f} {}", value, value < 9.95 ? 1 : 0, kUnits[unit]);
}

}  // namespace keyhole
