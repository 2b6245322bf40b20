#include "app/window/command_areas.h"

#include <array>

namespace keyhole {

namespace {

using namespace key;

constexpr std::array kTable = {
    UserCommand{"palette", menu::kHelp, "Command palette…", "", {'P', kCtrl}, open_dialog<Dialog::palette>},
    UserCommand{"help.keys", menu::kHelp, "Keys", "", {'/', kShift}, open_dialog<Dialog::keys>},
    UserCommand{"help.about", menu::kHelp, "What you see", "", {kF1, 0}, open_dialog<Dialog::about>},
};

}  // namespace

std::span<const UserCommand> app_commands() {
    return kTable;
}

}  // namespace keyhole
