/// Files of budgets by head: Keyhole's own, and those that DuoAttention and HeadKV published. Any thread;
/// knows base and head_table.h only. The content tells the forms apart:
///
///     {"head_budgets": 1, "about": "...", "layers": [[64, "all"], ["25%", "1.5x"]]}      Keyhole
///     1.0000e+00 <tab> 4.5e-01 ...    a line a layer, a number from 0 to 1 a KV head     DuoAttention
///     {"0-0": [0.2, 0.4], "0-1": [0.1], ...}    scores by layer and query head           HeadKV
///
/// A lane takes the budgets over when it is given, so that it needs no file later.
#pragma once

#include "engine/policy/head_table.h"

#include <filesystem>
#include <optional>

namespace keyhole {

/// How published numbers become budgets.
struct HeadFileForm {
    /// DuoAttention: the share of heads, those with the smallest numbers, that keep the lane's own budget
    /// alone; the others keep all. Among equal numbers the lower layer, then the lower head comes first.
    std::optional<double> sparsity{};
    double threshold = 0.5;  ///< without sparsity: numbers from here on keep all
    /// HeadKV: 1/beta of the budgets is shared by score, the rest in equal parts.
    double beta = 1.2;
};

/// Reads a file, or the file full_attention_heads.tsv of a folder. Throws Error(bad_file) with the path,
/// what is wrong and what to do.
HeadTable read_head_file(const std::filesystem::path& path, const HeadFileForm& form = {});

/// Returns Keyhole's own file. about: a line for its reader, such as the command that made it.
std::string head_file_text(const HeadTable& table, std::string_view about);

/// Reads what `heads=` has after the name: `FILE sparsity=25%`, `FILE threshold=0.6`, `FILE beta=1.1`.
/// *fault is set instead of a throw where the words are wrong; the file's own faults throw.
HeadTable head_file_of(std::string_view text, std::string* fault);

}  // namespace keyhole
