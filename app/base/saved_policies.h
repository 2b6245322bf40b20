/// Saved policies: lane specs with a name, one a file NAME.policy.json, in the user's folder or wherever a
/// file that somebody sent lies. Their names stand for presets wherever a lane is typed. Any thread; knows
/// lane specs.
///
/// A file is one JSON object of texts: `name`, `spec`, and if wanted `about` (a sentence) and `version` (of
/// the program that wrote it).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct SavedPolicy {
    std::string name;   ///< 1 to 40 letters, digits, `-`, `_` and `.`, the first a letter or digit; no preset
    std::string spec;   ///< as format_lane_spec() writes it, without a lane's name
    std::string about;  ///< one line, at most 400 bytes; may be empty
    std::string version;  ///< may be empty
    bool operator==(const SavedPolicy&) const = default;
};

/// One of the user's folder.
struct ListedPolicy {
    std::filesystem::path file;
    SavedPolicy policy;  ///< only its name if the file cannot be read
    std::string fault;   ///< why it cannot be read; empty if it can
};

inline constexpr std::string_view kPolicyFileEnd = ".policy.json";

/// Returns $XDG_DATA_HOME/keyhole/policies, or ~/.local/share/keyhole/policies; empty if neither is known.
std::filesystem::path saved_policies_folder();
std::filesystem::path saved_policy_file(std::string_view name);

/// Reads a file that others may have made: at most 2 MiB. The name of a file in the user's folder is that of
/// its policy. Throws Error(bad_file) in one line with the path.
SavedPolicy read_saved_policy(const std::filesystem::path& file);
/// Returns those of the user's folder by name.
std::vector<ListedPolicy> list_saved_policies();

/// Those of the user's folder, read again when a file has come, gone, or changed in time or size.
class SavedPolicyList {
  public:
    const std::vector<ListedPolicy>& now();

  private:
    struct Seen {
        std::filesystem::path file;
        std::filesystem::file_time_type changed{};
        std::uintmax_t bytes = 0;
        bool operator==(const Seen&) const = default;
    };
    static std::vector<Seen> seen_now();
    std::vector<Seen> seen_;
    std::vector<ListedPolicy> all_;
};

/// Writes a policy into the user's folder and returns the spec that stood there before; empty: none. The
/// policy's spec is any that parse_lane_spec() reads; files that it names as `heads=` are copied into it.
/// Throws Error(wrong_use) for a bad name, spec or sentence, Error(io).
std::string save_policy(const SavedPolicy& policy);
/// Throws Error(wrong_use) if there is none with this name.
void remove_saved_policy(std::string_view name);

/// Returns a lane spec with a saved policy's own spec in place of its name: `my-rule`, `my-rule:budget=64`,
/// whose keys replace the saved ones. A word with `/`, or that ends in .policy.json, is the path of a file.
/// The lane gets the policy's name, unless it has one. Returns any other text as it is: presets win. Throws
/// as read_saved_policy(), and Error(wrong_use) for a word that is nearly a saved name and no preset's.
std::string with_saved_policy(std::string_view lane_spec);
/// The same for the spec in a command of the engine: `add SPEC`, `lane 1 SPEC`, `fork 0 SPEC`.
std::string command_with_saved_policy(std::string_view command);

}  // namespace keyhole
