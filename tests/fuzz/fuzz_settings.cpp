// Fuzzes the window's settings file: a refused file changes nothing, an accepted file gives values within
// bounds.
#include "app/state/settings.h"

#include "tests/fuzz/structure.h"

#include <cmath>

namespace keyhole::fuzz_settings {

static int run(const std::uint8_t* data, std::size_t size) {
    const MemoryFile file(text_of(data, size));
    ViewState view;
    RecentFiles recent;
    bool refused = true;
    expect_error_or_none([&] {
        load_settings(file.path(), view, recent);
        refused = false;
    });
    if (refused && (view.interface_scale != 1 || view.left_width != 0 || !(recent == RecentFiles{})))
        std::abort();
    if (!(view.interface_scale >= 0.5f && view.interface_scale <= 3) ||
        recent.paths.size() > RecentFiles::kMost || recent.models.size() > RecentFiles::kMost)
        std::abort();
    for (const float width : {view.left_width, view.right_width, view.atlas_height, view.text_height})
        if (!(width >= 0 && width <= 100'000)) std::abort();
    return 0;
}

static std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed) {
    return mutate_text(data, size, max_size, seed,
                       {"explore", "compare", "teach", "cividis", "rdbu", "/tmp/run.keyhole"});
}

static const FuzzTarget target("settings", run, mutate);

}  // namespace keyhole::fuzz_settings
