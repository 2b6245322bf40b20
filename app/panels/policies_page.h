/// Draws the policies by what they look at, each with what it keeps of the same prompt. Window thread.
#pragma once

#include "app/base/kept_pictures.h"
#include "app/base/saved_policies.h"
#include "app/panels/panel.h"

#include <string>

namespace keyhole {

struct PoliciesPage {
    bool read = false;
    KeptPictures pictures;
    std::string fault;  ///< why there are no pictures
    SavedPolicyList saved;
};

/// Draws into the current window.
void draw(PoliciesPage& page, const PanelContext& context);

}  // namespace keyhole
