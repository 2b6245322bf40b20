/// The numbers of a run for a page (page.h): one block of bytes with a directory. What does not fit is
/// thinned, by rows of heads, the most telling ones first. Pure functions; any thread. Lanes are indices into
/// history.lanes().
#pragma once

#include "engine/trace/run_history.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// Sections one after the other. The bytes of their numbers lie in planes, lowest bytes first: they compress
/// better so.
class PageNumbers {
  public:
    void add(const std::string& name, std::span<const std::int32_t> values);
    void add(const std::string& name, std::span<const float> values);
    void add(const std::string& name, std::span<const std::uint16_t> values);
    void add(const std::string& name, std::span<const std::uint8_t> values);
    /// Adds numbers of 16 bits that are halves.
    void add_halves(const std::string& name, std::span<const std::uint16_t> values);

    /// Returns name -> {at, count, type} as JSON.
    std::string directory() const;
    /// Returns the compressed bytes in base64.
    std::string text() const;

  private:
    struct Section {
        std::string name, type;
        std::size_t at = 0, count = 0;
    };
    std::vector<Section> sections_;
    std::vector<std::byte> bytes_;

    void add_planes(const std::string& name, std::string_view type, const void* values, std::size_t count,
                    std::size_t width);
};

/// Returns the half with the fewest bits that number_text() writes as this one.
std::uint16_t shortest_half(std::uint16_t bits);
/// Returns the same for a float.
float shortest_float(float value);

/// A row of one head of one lane.
struct HeadRowPlace {
    int lane = 0, row = 0, head = 0;  ///< head: layer * n_heads + head
    bool operator==(const HeadRowPlace&) const = default;
};

/// What a page tells of a run's rows. By lane in the order of `lanes`.
struct PageRows {
    std::vector<int> lanes;
    std::vector<HeadRowPlace> order;          ///< all recorded rows, most telling first
    std::vector<std::size_t> most_bytes;      ///< of `order`: about, when compressed
    std::vector<std::vector<float>> largest;  ///< [lane][head] of attention
};

/// telling: heads, most telling first. Rows of the answers, [first, last], come before others.
PageRows page_rows(const RunHistory& history, const std::vector<int>& lanes, const std::vector<int>& telling,
                   int first_answer_row, int last_answer_row);

/// Adds the first n places of rows.order, with the scores of their KV heads.
void add_rows(PageNumbers& numbers, const RunHistory& history, const PageRows& rows, std::size_t n);

/// Adds what is never thinned: which row evicted each position, and the lowest scores that stayed.
void add_evictions(PageNumbers& numbers, const RunHistory& history, const std::vector<int>& lanes);

/// The prompt's attention in blocks of `side` tokens a side, for each head a lower triangle of codes.
struct PromptBlocks {
    int blocks = 0, side = 1;
};
/// Adds an image as a section. Code c > 0 stands for 10^(-6 + 6 (c - 1) / 254), 0 for none.
PromptBlocks add_prompt(PageNumbers& numbers, const std::string& name, const PromptRows& image, int n_heads);
/// Returns the largest attention of each head in an image.
std::vector<float> largest_of_prompt(const PromptRows& image, int n_heads);

}  // namespace keyhole
