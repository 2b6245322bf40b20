/// A hand-in of the lab: a small JSON file with a name, a seed and an answer for each exercise. Reads files
/// of strangers. Any thread; knows no model.
#pragma once

#include "app/lab/lab.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct HandIn {
    std::string file;  ///< as named in messages and tables
    std::string name;  ///< see student_name()
    std::uint64_t seed = 0;
    struct Stored {
        std::optional<std::int64_t> full, window, bytes;
        bool operator==(const Stored&) const = default;
    } stored;                     ///< exercise 1
    std::string kept;             ///< exercise 2: "0-3 90-110"
    std::optional<int> smallest;  ///< exercise 3
    struct Known {
        std::optional<double> window, h2o, tova;  ///< in per cent
        bool operator==(const Known&) const = default;
    } known;                // exercise 4
    std::string byte_lane;  ///< exercise 5
    std::string own_lane;   ///< exercise 6

    bool has_own_seed() const { return seed == seed_of_name(name); }
};

/// Throws Error(bad_file), naming the place of the fault.
HandIn parse_hand_in(std::string_view text, const std::filesystem::path& file);
HandIn read_hand_in(const std::filesystem::path& file);

/// Returns the file that a student fills in: no answers yet.
std::string empty_hand_in(const std::string& name, const StudentNumbers& numbers);
/// Returns a name for the student's files that is safe in every folder: "ada-lovelace". Letters
/// beyond ASCII stay, so that names in other scripts differ.
std::string file_name_of(std::string_view name);

/// Reads "0-3 90-110": ascending positions, each once; nullopt for other texts.
std::optional<std::vector<int>> positions_of(std::string_view ranges);
std::string ranges_of(const std::vector<int>& positions);

}  // namespace keyhole
