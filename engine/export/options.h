/// Options of an export: what it writes, which part of the run it covers, and how large it gets. Plain
/// values, for any thread; knows layouts, but no run.
#pragma once

#include "engine/figure/drawing.h"
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
    bool run = false, mask = false, mask_table = false, attention = false, logits = false, next = false,
         noise = false;
    bool q = false, k = false, v = false;  ///< queries, keys and values of the rows' own tokens
    bool queries = false;                  ///< what the prompt's queries are like, for calibration=FILE
    bool scores = false, choice = false, heatmap = false, csv = false, json = false;
    bool frames = false;  ///< the mask over time: one picture per row
    bool gif = false;     ///< the same as an animated GIF
    /// One GIF per head: how its picture grows row by row.
    bool gif_attention = false, gif_mask = false, gif_scores = false;
    bool shadow = false;      ///< full rows and ideal sets of the lanes with a shadow
    bool all_rows = false;    ///< prompt rows too
    std::vector<int> layers;  ///< of arrays, pictures and tables; empty: all
    std::vector<int> heads;   ///< query heads; empty: all
    int last_rows = 0;        ///< only this many rows up to the planned end; 0: all
    bool f16 = false;         ///< arrays in half precision
    bool yes = false;         ///< allows more than 2 GB without asking
    bool leaves_out = false;  ///< a picture that does not fit is left out and named; else it ends the export
    /// What others write into the same folder, see ExportSink::finish().
    std::int64_t more_bytes = 0;
    int more_files = 0;
    std::string program, command;  ///< for run.json: what made the export; empty: not known
    /// Words, or FIRST..LAST, whose columns masks and heat maps mark, where the text has them.
    std::string watch;
    /// For masks, heat maps and curves of scores. Frames and GIFs only take the background: their cells are
    /// whole pixels.
    PictureChoice pictures;

    /// Returns the rows that the session must compute for these options.
    RowRequest requested() const;
    /// Returns whether attention is written during the run: it is asked for, or the end needs it row by row.
    bool streams_attention() const {
        return attention || csv || json || ((heatmap || gif_attention) && all_rows);
    }
    /// Returns whether the choice of pictures is used.
    bool draws() const { return mask || heatmap || scores; }
    /// Returns whether its background is used for frames and GIFs.
    bool animates() const { return frames || gif || gif_attention || gif_mask || gif_scores; }
    bool streams_scores() const { return scores || choice || gif_scores; }
    bool streams_inputs() const { return q || k || v || queries; }
    bool streams() const {
        return streams_attention() || logits || noise || streams_scores() || shadow || streams_inputs();
    }
};

/// Switches on the words of a comma list, see export_words(). `all` means all but frames and GIFs.
/// of_records: `all` also leaves out what records do not hold, and naming that is refused. Throws
/// Error(wrong_use) with the nearest valid word. others: words that are known elsewhere, for that message.
void parse_export_list(std::string_view list, ExportOptions& options, bool of_records = false,
                       std::span<const std::string_view> others = {});
/// Throws Error(wrong_use) if the options ask for something that records do not hold: a word, or values of
/// the prompt's rows.
void check_of_records(const ExportOptions& options);

/// A word of --export, and one line on what it writes.
struct ExportWord {
    std::string_view name;
    std::string_view help;
    bool ExportOptions::*flag;
    bool in_all = true;
    bool in_records = true;  ///< a trace holds it
    /// It has values of rows, which records hold of decoded rows alone.
    bool of_rows = false;
};
std::span<const ExportWord> export_words();
/// Returns "run, mask, ..., all".
std::string export_word_list();

/// The facts about a run that an export needs before it starts.
struct ExportShape {
    KvLayout layout;  ///< of the run's model
    int n_prompt = 0;
    int n_lanes = 1;                  ///< at the start
    int last_row = 0;                 ///< n_prompt + tokens - 1: the last row that may come
    std::vector<KvLayout> of_lane{};  ///< layouts of the lanes at the start; empty: the model's
    int head_dim = 0;                 ///< for q, k and v
};

/// The indices that an export covers.
struct ExportRange {
    /// Ascending; KV heads are those that a chosen query head reads.
    std::vector<int> layers, heads, kv_heads;
    int first_row = 0;
    int last_row = -1;
    std::string watch = {};  ///< see ExportOptions
    int n_positions() const { return last_row + 1; }
    int n_rows() const { return last_row < first_row ? 0 : last_row - first_row + 1; }
};

/// Returns the KV heads that the query heads read, ascending.
std::vector<int> kv_heads_read(const KvLayout& layout, const std::vector<int>& layers,
                               const std::vector<int>& heads);

/// Returns the range of an export; its kv_heads are those of the run's model. Throws Error(wrong_use) for a
/// layer or head that the model does not have.
ExportRange export_range(const ExportOptions& options, const ExportShape& shape);

/// Returns the bytes of all files of all lanes: exact for arrays, approximate for tables and pictures.
std::int64_t estimate_bytes(const ExportOptions& options, const ExportShape& shape);
/// Returns the number of files, at most: a lane may draw no noise or have no shadow.
std::int64_t estimate_files(const ExportOptions& options, const ExportShape& shape);

/// Throws Error(io) if the estimate exceeds the free disk space, Error(wrong_use) if it exceeds 2 GB without
/// `yes`.
void check_export_size(const ExportOptions& options, const ExportShape& shape);

/// Returns a text such as "1.4 GB".
std::string format_bytes(std::int64_t bytes);

}  // namespace keyhole
