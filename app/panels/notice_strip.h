/// A strip at the lower edge of the window, for a notice that waits for an answer. lay_out() leaves the room,
/// so that it covers nothing. Window thread, within a frame, outside of other windows.
#pragma once

#include "app/panels/panel.h"

#include <string>

namespace keyhole {

class NoticeStrip {
  public:
    NoticeStrip(const PanelContext& context, const char* id);
    ~NoticeStrip();
    NoticeStrip(const NoticeStrip&) = delete;
    NoticeStrip& operator=(const NoticeStrip&) = delete;
    /// Draws the notice, in several lines where it is longer than the strip.
    void text(const std::string& text);
    /// Moves to the place of the next item: beside the last one, or below it where it has no room there.
    void next(float width);
    /// Draws a button at the next place. Returns whether it was pressed.
    bool button(const char* label);

  private:
    const PanelContext& context_;
};

}  // namespace keyhole
