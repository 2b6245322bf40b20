/// A search for the numbers of a lane spec that answer best: which lanes to try next, at one total of bytes.
/// Pure functions, for any thread; knows no backend and asks nothing.
#pragma once

#include "engine/policy/lane_spec.h"

#include <functional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// A number of a spec that may change: a key, a key of some heads (`budget@L0-3`), or a name that stands in
/// braces in the spec, `choose=(s/(age+{a}))`.
struct SearchRange {
    std::string name;
    double low = 0, high = 1;
    std::string unit = {};  ///< "%" or nothing
    bool is_whole = false;  ///< the spec takes whole numbers alone
    bool operator==(const SearchRange&) const = default;
};

/// Parses `alpha=0..1` or `recent=10%..50%`. Throws Error(wrong_use).
SearchRange parse_search_range(std::string_view text);

/// A lane that was or is tried.
struct SearchTry {
    LaneSpec lane;
    std::vector<double> at;           ///< place of each number in its range, 0 to 1
    std::vector<std::string> values;  ///< as in the spec
    bool is_wide = false;             ///< spread over the ranges; else near the best one so far
};

/// The lanes that a search may try.
class SearchSpace {
  public:
    static constexpr std::size_t kMostRanges = 8;
    /// text: a lane spec, in which names in braces stand for numbers. Throws Error(wrong_use) if a name in
    /// braces has no range, if a range names neither such a name nor a key, if the lane takes none of its
    /// values, if none of them changes it, or if the lane keeps everything.
    SearchSpace(std::string text, std::vector<SearchRange> ranges);

    const std::vector<SearchRange>& ranges() const { return ranges_; }
    /// Returns the lane as it was given; numbers in braces are in the middle of their ranges.
    SearchTry given() const;
    /// Returns the lane at a place; each is 0 to 1. Throws Error(wrong_use) if the lane refuses the values.
    SearchTry at(std::vector<double> place) const;
    /// Returns whether the lane's own budget is among the ranges.
    bool varies_budget() const;

  private:
    std::string text_at(std::span<const double> place) const;
    std::string value_at(std::size_t range, double place) const;
    bool is_in_braces(std::size_t range) const;
    void check_key(std::size_t range) const;
    void check_effect(std::size_t range) const;

    std::string text_;
    std::vector<SearchRange> ranges_;
};

/// Returns the lane with the largest budget, from 1 to `most`, whose bytes are at most `total`. If the
/// budget must stay, the lane itself. None of both fits: returns false.
bool fit_bytes(LaneSpec& lane, bool keeps_budget, int most, double total,
               const std::function<double(const LaneSpec&)>& bytes_of);

/// Proposes lanes. What it proposes follows from its seed and from the places that it is told are best.
class LaneSearch {
  public:
    /// fit: as fit_bytes(); lanes that do not fit are not proposed.
    LaneSearch(SearchSpace space, std::uint64_t seed, std::function<bool(LaneSpec&)> fit);

    /// Returns up to n lanes, none of which was proposed before: the given one first, then places spread
    /// evenly over the ranges (Halton).
    std::vector<SearchTry> wide(int n);
    /// Returns up to n lanes around a place. reach: of the range, about how far away they are.
    std::vector<SearchTry> near(std::span<const double> place, double reach, int n);
    const SearchSpace& space() const { return space_; }
    int n_refused() const { return n_refused_; }  ///< lanes that did not fit, or that cannot be

  private:
    void propose(std::vector<double> place, bool is_wide, std::vector<SearchTry>& tries);
    void add(SearchTry one, std::vector<SearchTry>& tries);
    double uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

    SearchSpace space_;
    std::mt19937_64 random_;
    std::function<bool(LaneSpec&)> fit_;
    std::vector<std::string> known_;  ///< specs proposed so far
    int n_refused_ = 0;
};

}  // namespace keyhole
