// Fuzzes the notes beside a trace and the view that one of their bookmarks requests.
#include "app/state/annotations.h"

#include "tests/fuzz/structure.h"

namespace keyhole::fuzz_notes {

static int run(const std::uint8_t* data, std::size_t size) {
    const MemoryFile file(text_of(data, size));
    static const std::filesystem::path copy =
        std::filesystem::temp_directory_path() / ("keyhole-fuzz-" + std::to_string(getpid()) + ".notes.json");
    expect_error_or_none([&] {
        const Annotations read = load_annotations(file.path());
        for (const Bookmark& b : read.bookmarks) {
            ViewState view;
            view.lane = b.lane;
            view.layer = b.layer;
            view.head = b.head;
            view.other = b.other;
            view.row = b.row;
            view.pick = b.pick;
            view.follows_newest = false;
            view.fit_to(2, 3, 4, 5, 20);
            if (view.pick &&
                (view.pick->position < 0 || view.pick->row > 20 || view.pick->position > view.pick->row))
                std::abort();
            if (!b.zoom) continue;
            HeatView zoom = *b.zoom;
            const CanvasPoint cell = zoom.cell_at({1920, 1200});
            if (zoom.level() > 20 || !(cell.x > -1e9 && cell.x < 1e9 && cell.y > -1e9 && cell.y < 1e9))
                std::abort();
            zoom.keep_in_sight(20, 20, 1920, 1200);
        }
        // Accepted notes, written and read again, must be equal.
        save_annotations(read, copy);
        if (!(load_annotations(copy) == read)) std::abort();
    });
    std::error_code ignored;
    std::filesystem::remove(copy, ignored);
    return 0;
}

static std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed) {
    return mutate_text(data, size, max_size, seed,
                       {"attention", "mask", "score", "compare", "teach", "a note"});
}

static const FuzzTarget target("notes", run, mutate);

}  // namespace keyhole::fuzz_notes
