/// What every preset keeps of one prompt, side by side: positions in one head, from a run of the engine.
/// Plain values and their file; any thread; runs nothing itself.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// What a head keeps of the prompt, or the first step reads of it: see keep_by_presets().
struct KeptPicture {
    std::string preset;
    std::vector<int> positions;  ///< ascending
    std::string why_not = {};    ///< why there is none; empty: there is one
    bool operator==(const KeptPicture&) const = default;
};

struct KeptPictures {
    std::string model, prompt;  ///< names of what was read
    int budget = 0, layer = 0, head = 0;
    std::vector<std::string> tokens;  ///< of the prompt
    std::vector<int> watched;         ///< positions of the words that the answer needs, ascending
    std::vector<KeptPicture> presets;
    /// Returns the picture of a preset; null: the file is older than the preset.
    const KeptPicture* find(std::string_view preset) const;
    bool operator==(const KeptPictures&) const = default;
};

nlohmann::json to_json(const KeptPictures& pictures);
/// Throws Error(bad_file) with the place of the fault.
KeptPictures parse_kept_pictures(std::string_view text, const std::string& name);
/// Reads the pictures that come with the program. Throws Error(bad_file) or Error(io).
KeptPictures shipped_kept_pictures();

/// Returns the share of each of `width` equal pieces of the prompt that is kept, in 0 .. 1.
std::vector<float> kept_shares(const KeptPictures& pictures, const KeptPicture& kept, int width);

}  // namespace keyhole
