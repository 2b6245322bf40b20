#include "engine/trace/read_budget.h"

#include "engine/base/error.h"

namespace keyhole {

void ReadBudget::take(std::uint64_t n_bytes, std::string_view what) {
    if (n_bytes > bytes_left_)
        fail(ErrorCode::bad_file,
             "cannot read {}: {} would take {} MiB, more than a run in a file of its size needs; get the "
             "file again",
             name_, what, n_bytes >> 20);
    bytes_left_ -= n_bytes;
}

void ReadBudget::look(std::uint64_t n_places, std::string_view what) {
    if (n_places > places_left_)
        fail(ErrorCode::bad_file,
             "cannot read {}: {} has {} values, more than a run in a file of its size needs; get the file "
             "again",
             name_, what, n_places);
    places_left_ -= n_places;
}

}  // namespace keyhole
