/// A strip at the lower edge of the window, for a notice that waits for an answer. lay_out() leaves the room,
/// so that it covers nothing. Window thread, within a frame, outside of other windows.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

class NoticeStrip {
  public:
    NoticeStrip(const PanelContext& context, const char* id);
    ~NoticeStrip();
    NoticeStrip(const NoticeStrip&) = delete;
    NoticeStrip& operator=(const NoticeStrip&) = delete;

  private:
    const PanelContext& context_;
};

}  // namespace keyhole
