/// What an export writes, how large it gets, and which part of the run it covers. Plain values; any thread.
#pragma once

#include "engine/model/kv_layout.h"
#include "engine/policy/row.h"

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct ExportOptions {
    std::filesystem::path folder;
    bool run = false, mask = false, attention = false, logits = false, next = false, noise = false;
    bool scores = false, heatmap = false, csv = false, json = false;
    bool frames = false;  ///< the mask over time: a picture a row
    bool gif = false;     ///< the same as an animated GIF
    bool gif_attention = false, gif_mask = false,
         gif_scores = false;  ///< a GIF a head: how its picture grows row by row
    bool shadow = false;      ///< full rows and ideal sets of the lanes that run a shadow
    bool all_rows = false;    ///< prompt rows too
    std::vector<int> layers;  ///< of arrays, pictures and tables; empty: all
    std::vector<int> heads;   ///< query heads; empty: all
    int last_rows = 0;        ///< only so many rows from the planned end; 0: all
    bool f16 = false;         ///< arrays in half precision
    bool yes = false;         ///< more than 2 GB without asking

    /// Rows that the session must make for this.
    RowWants wants() const;
    /// Attention goes to disk while the run goes on: asked for, or needed row by row at the end.
    bool streams_attention() const {
        return attention || csv || json || ((heatmap || gif_attention) && all_rows);
    }
    bool streams_scores() const { return scores || gif_scores; }
    bool streams() const { return streams_attention() || logits || noise || streams_scores() || shadow; }
};

/// Switches on what the comma list names, words of export_words(); `all` is all of them but frames and GIFs; of_records: and but
/// what records do not hold, which may not be named either. Throws Error(wrong_use) with the nearest valid word.
void parse_export_list(std::string_view list, ExportOptions& options, bool of_records = false);
/// Throws Error(wrong_use) where the options ask for what records do not hold.
void check_of_records(const ExportOptions& options);

/// A word of --export and what it writes, in a line.
struct ExportWord {
    std::string_view name;
    std::string_view help;
    bool ExportOptions::*flag;
    bool in_all = true;
    bool in_records = true;  ///< a trace holds it
};
std::span<const ExportWord> export_words();
/// "run, mask, ..., all"
std::string export_word_list();

/// What must be known before the run starts.
struct ExportShape {
    KvLayout layout;  ///< of the run's model
    int n_prompt = 0;
    int n_lanes = 1;                  ///< at the start
    int last_row = 0;                 ///< n_prompt + tokens - 1: rows up to this one may come
    std::vector<KvLayout> of_lane{};  ///< of the lanes at the start; empty: the model's
};

/// Indices that an export covers.
struct ExportRange {
    std::vector<int> layers, heads,
        kv_heads;  ///< ascending; KV heads are those that a chosen query head reads
    int first_row = 0;
    int last_row = -1;
    int n_positions() const { return last_row + 1; }
    int n_rows() const { return last_row < first_row ? 0 : last_row - first_row + 1; }
};

/// KV heads that the query heads read, ascending.
std::vector<int> kv_heads_read(const KvLayout& layout, const std::vector<int>& layers,
                               const std::vector<int>& heads);

/// Throws Error(wrong_use) for a layer or head that the model has not. kv_heads: of the run's model.
ExportRange export_range(const ExportOptions& options, const ExportShape& shape);

/// Bytes of all files of all lanes: arrays exactly, tables and pictures roughly.
std::int64_t estimate_bytes(const ExportOptions& options, const ExportShape& shape);

/// Throws Error(io) when the estimate exceeds the free disk space, Error(wrong_use) above 2 GB without `yes`.
void check_export_size(const ExportOptions& options, const ExportShape& shape);

/// "1.4 GB"
std::string format_bytes(std::int64_t bytes);

}  // namespace keyhole
