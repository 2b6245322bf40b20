/// Parses a page of the manual: Markdown to blocks (by md4c) that a terminal and a window can draw. Any
/// thread; knows neither GL nor a model.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// A piece of text in one style.
struct ManualSpan {
    std::string text;
    bool bold = false, italic = false, code = false;
    std::string link;  ///< target as written, `models.md`, `policies.md#0-ten-facts` or a URL; empty: no link
    std::string picture = {};  ///< file beside the page, `pictures/x.svg`; `text` then stands for it
};

using ManualText = std::vector<ManualSpan>;

struct ManualBlock {
    enum class Kind { heading, paragraph, item, code, table };
    Kind kind = Kind::paragraph;
    int level = 0;                              ///< of a heading, 1 to 6
    int indent = 0;                             ///< number of lists around the block; at least 1 for an item
    int number = 0;                             ///< of an item of a numbered list; 0: a bullet
    bool tight = false;                         ///< an item of a list without empty lines between items
    ManualText text;                            ///< of headings, paragraphs and items
    std::string code;                           ///< lines of a code block, each with its line end
    std::vector<std::vector<ManualText>> rows;  ///< [row][column] of a table; row 0 is the header
};

struct ManualPage {
    std::string name;  ///< `models` for models.md
    std::vector<ManualBlock> blocks;
};

/// A place in the manual. As text: `window`, or `window#panes` for a heading of that page.
struct ManualPlace {
    std::string page;      ///< empty in a link within its own page
    std::string fragment;  ///< see heading_fragment(); empty: the top
    bool operator==(const ManualPlace&) const = default;
};

ManualPlace parse_manual_place(std::string_view text);
std::string format_manual_place(const ManualPlace& place);

/// Returns the place that a link names, `models.md` or `policies.md#0-ten-facts`; nullopt for a URL.
std::optional<ManualPlace> place_of_link(std::string_view link);

/// Returns the text without its styles.
std::string plain_text(const ManualText& text);

/// Returns "2.11" for a heading "2.11 MHA, MQA, GQA, MLKV"; empty if the heading has no number.
std::string section_number(const ManualBlock& heading);

/// Returns the URL fragment of a heading, as GitHub makes it: "211-mha-mqa-gqa-mlkv".
std::string heading_fragment(const ManualBlock& heading);

/// Parses a page. Throws Error(unsupported), naming the page and the kind, for Markdown that the manual does
/// not draw: HTML, quotes, rules, entities. A picture is drawn by a browser alone; elsewhere its text stands.
ManualPage parse_manual_page(std::string name, std::string_view markdown);

/// Returns the first section with this number, or with this text in its heading from the beginning of a word
/// on, and its subsections; no blocks if the page has no such section.
ManualPage section_of(const ManualPage& page, std::string_view wanted);

/// Returns the page names of a folder in alphabetical order. Throws Error(bad_file) if it has none.
std::vector<std::string> manual_page_names(const std::filesystem::path& folder);

/// Reads a page. Throws Error(wrong_use) with the nearest names if the folder has no such page, and
/// Error(bad_file).
ManualPage read_manual_page(const std::filesystem::path& folder, const std::string& name);

/// Reads the page of a place. Throws as read_manual_page(), and Error(wrong_use) if the page lacks the
/// heading.
ManualPage read_manual_place(const std::filesystem::path& folder, const ManualPlace& place);

}  // namespace keyhole
