/// Writes a page of the manual as HTML. Any thread; knows no website.
#pragma once

#include "app/manual/page.h"

#include <string>

namespace keyhole {

/// Returns the blocks, without what stands around them. A link to models.md leads to models.html; pictures
/// are beside the page, as in the manual.
std::string manual_html(const ManualPage& page);

}  // namespace keyhole
