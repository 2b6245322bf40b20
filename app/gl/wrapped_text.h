/// A text that a field shows in lines no wider than itself: Dear ImGui's fields break lines at line ends alone. A line that ends for want
/// of width ends in a line end that is shown and is no part of the text. Window thread; knows no ImGui, whose field edits shown().
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

class WrappedText {
  public:
    /// Pixels of a piece of one line; those of two pieces add up.
    using Measure = std::function<float(std::string_view)>;

    void set(std::string_view text, float width, const Measure& measure);
    /// Without the line ends that are only shown.
    std::string text() const;
    const std::string& shown() const { return shown_; }
    float width() const { return width_; }

    /// The field has made this of shown(): breaks its lines anew. cursor_before, cursor: bytes, before and after the edit. Returns where
    /// the cursor is in shown(). To delete a line end that is only shown deletes the character beside it instead.
    std::size_t edited(std::string_view now, std::size_t cursor_before, std::size_t cursor,
                       const Measure& measure);

  private:
    std::string shown_;
    std::vector<std::size_t> soft_;  // places of line ends that are only shown, ascending
    float width_ = 0;
    void wrap(std::string_view text, const Measure& measure);
};

}  // namespace keyhole
