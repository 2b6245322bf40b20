/// Wraps a text to the width of a field, since Dear ImGui's fields break lines only at line ends. A soft
/// line end is shown in the field but is not part of the text. Window thread; knows no ImGui, whose field
/// edits shown().
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

class WrappedText {
  public:
    /// Returns the width of a piece of one line in pixels. The widths of two pieces add up.
    using Measure = std::function<float(std::string_view)>;

    void set(std::string_view text, float width, const Measure& measure);
    /// Returns the text without soft line ends.
    std::string text() const;
    const std::string& shown() const { return shown_; }
    float width() const { return width_; }

    /// Rewraps the text after the field has changed shown() to `now`. cursor_before, cursor: byte offsets
    /// before and after the edit. Returns the cursor's offset in the new shown(). If the edit deleted a soft
    /// line end, deletes the character beside it instead.
    std::size_t edited(std::string_view now, std::size_t cursor_before, std::size_t cursor,
                       const Measure& measure);

  private:
    std::string shown_;
    std::vector<std::size_t> soft_;  // offsets of soft line ends, ascending
    float width_ = 0;
    void wrap(std::string_view text, const Measure& measure);
};

}  // namespace keyhole
