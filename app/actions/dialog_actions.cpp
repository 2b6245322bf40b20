#include "app/actions/action_areas.h"

#include <utility>

namespace keyhole {

namespace {

/// Returns the actions of the rows of kDialogs that say all of them.
template <std::size_t... kRows>
std::vector<UserAction> openers(std::index_sequence<kRows...>) {
    std::vector<UserAction> made;
    const auto add = [&](const DialogRow& row, auto* run) {
        const auto& [title, help, shortcut, menu] = row.opener;
        if (!title.empty()) made.push_back({row.action, title, help, shortcut, run, {.menu = menu}});
    };
    (add(kDialogs[kRows], open_dialog<kDialogs[kRows].dialog>), ...);
    return made;
}

}  // namespace

std::span<const UserAction> dialog_actions() {
    static const std::vector<UserAction> actions = openers(std::make_index_sequence<kDialogs.size()>());
    return actions;
}

}  // namespace keyhole
