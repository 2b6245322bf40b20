/// Budgets by head as files that other programs read too. Any thread; knows no backend.
#pragma once

#include "app/study/budget_forms.h"

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace keyhole {

/// What the files are made of.
struct HeadFiles {
    const KvLayout& layout;
    const Attribution& found;  ///< parts are KV heads or layers
    std::vector<int> tokens;   ///< of each part, as budget_tokens() has them
    BudgetTotal total;
    int sinks = 0;        ///< of the lane; 0: as many as the group `sinks` has
    std::string made_by;  ///< what made them, for heads.json
};

/// Returns the names of the files that write_head_files() may write.
std::vector<std::string> head_file_names();
/// Writes heads.json, which a lane reads by heads=FILE; full_attention_heads.tsv and config.json, which
/// DuoAttention reads; and headkv.json, which HeadKV reads. Without Attribution::gains there is no
/// headkv.json, and where a layer owns no KV heads no heads.json. Returns the names of the files. Throws
/// Error(wrong_use) for a folder with a config.json of something else; Error(io).
std::vector<std::string> write_head_files(const std::filesystem::path& folder, const HeadFiles& files);

}  // namespace keyhole
