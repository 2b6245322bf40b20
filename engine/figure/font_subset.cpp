#include "engine/figure/font_subset.h"

#if KH_HAVE_PDF
#include <hb-ot.h>
#include <hb-subset.h>

#include <memory>
#endif

namespace keyhole {

#if KH_HAVE_PDF

namespace {

template <class T, void (*destroy)(T*)>
struct Destroy {
    void operator()(T* object) const { destroy(object); }
};
template <class T, void (*destroy)(T*)>
using Owned = std::unique_ptr<T, Destroy<T, destroy>>;

}  // namespace

std::vector<std::byte> font_subset(const FontFile& font, const std::set<char32_t>& characters) {
    const Owned<hb_blob_t, hb_blob_destroy> file(hb_blob_create_from_file(font.path.c_str()));
    const Owned<hb_face_t, hb_face_destroy> face(
        hb_face_create(file.get(), static_cast<unsigned>(font.number)));
    const Owned<hb_subset_input_t, hb_subset_input_destroy> input(hb_subset_input_create_or_fail());
    if (input == nullptr) return {};
    for (const char32_t c : characters) hb_set_add(hb_subset_input_unicode_set(input.get()), c);
    hb_set_t* dropped = hb_subset_input_set(input.get(), HB_SUBSET_SETS_DROP_TABLE_TAG);
    for (const hb_tag_t tag : {HB_TAG('G', 'S', 'U', 'B'), HB_TAG('G', 'P', 'O', 'S'),
                               HB_TAG('G', 'D', 'E', 'F'), HB_TAG('k', 'e', 'r', 'n')})
        hb_set_add(dropped, tag);
    const Owned<hb_face_t, hb_face_destroy> subset(hb_subset_or_fail(face.get(), input.get()));
    if (subset == nullptr) return {};
    const Owned<hb_blob_t, hb_blob_destroy> blob(hb_face_reference_blob(subset.get()));
    unsigned length = 0;
    const auto* bytes = reinterpret_cast<const std::byte*>(hb_blob_get_data(blob.get(), &length));
    return {bytes, bytes + length};
}

#else

std::vector<std::byte> font_subset(const FontFile&, const std::set<char32_t>&) {
    return {};
}

#endif

}  // namespace keyhole
