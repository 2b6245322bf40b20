/// All layers x heads of the focused lane as thumbnails; a click focuses. Window thread.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

struct AtlasPanel {};

void draw(AtlasPanel& panel, const PanelContext& context);

}  // namespace keyhole
