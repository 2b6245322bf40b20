/// A run as one HTML file that needs neither network nor program: answers, text, maps, scores and evictions,
/// to be moved through by slider, keys and links. assets/page has its markup, style and script; this writes
/// the data. Any thread; knows no window.
#pragma once

#include "app/view/pictures.h"

#include <cstddef>
#include <string>
#include <string_view>

namespace keyhole {

/// Returns the most bytes of a page of a run: 1 MB up to 400 positions, 5 MB from 4,096 on, in between in
/// proportion. A page of many heads and steps is thinned to it, and says so.
std::size_t most_page_bytes(int n_positions);

/// Returns the page. Its answers, right answer and focused lane are the source's.
std::string run_page(const PictureSource& source);

/// Returns a text for a page: bytes that are no UTF-8 become <0xE4>, and characters that would end a line or
/// change the direction of writing <U+202E>.
std::string page_text(std::string_view text);

/// Returns a template with the text of `value` in place of each {{name}}; values are not looked through.
template <class Value>
std::string filled(std::string_view page, Value value) {
    std::string out;
    while (!page.empty()) {
        const std::size_t begin = page.find("{{"), end = page.find("}}", begin);
        if (end == std::string_view::npos) break;
        out += page.substr(0, begin);
        out += value(page.substr(begin + 2, end - begin - 2));
        page.remove_prefix(end + 2);
    }
    return out += page;
}

}  // namespace keyhole
