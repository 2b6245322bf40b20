/// A page of the manual: Markdown, parsed by md4c into blocks that the terminal and a window can draw. Any
/// thread; knows neither GL nor a model.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// A piece of text in one style.
struct ManualSpan {
    std::string text;
    bool bold = false, italic = false, code = false;
    std::string link;  ///< target as written: `models.md`, `policies.md#0-ten-facts`, a URL; empty: no link
};

using ManualText = std::vector<ManualSpan>;

struct ManualBlock {
    enum class Kind { heading, paragraph, item, code, table };
    Kind kind = Kind::paragraph;
    int level = 0;                              ///< of a heading, 1 to 6
    int indent = 0;                             ///< lists around the block; an item is in one at least
    int number = 0;                             ///< of an item of a numbered list; 0: a bullet
    bool tight = false;                         ///< an item of a list without empty lines between its items
    ManualText text;                            ///< of headings, paragraphs and items
    std::string code;                           ///< lines of a code block, each with its line end
    std::vector<std::vector<ManualText>> rows;  ///< [row][column] of a table; row 0 is its head
};

struct ManualPage {
    std::string name;  ///< `models` for models.md
    std::vector<ManualBlock> blocks;
};

/// The text without its styles.
std::string plain_text(const ManualText& text);

/// "2.11" for a heading "2.11 MHA, MQA, GQA, MLKV"; empty where the heading has no number.
std::string section_number(const ManualBlock& heading);

/// The fragment that a link to the heading ends with, as GitHub makes it: "211-mha-mqa-gqa-mlkv".
std::string heading_fragment(const ManualBlock& heading);

/// Throws Error(unsupported), naming page and kind, for Markdown that the manual does not draw: HTML,
/// pictures, quotes, rules, entities.
ManualPage parse_manual_page(std::string name, std::string_view markdown);

/// The section with this number and what is below it; no blocks where the page has no such section.
ManualPage section_of(const ManualPage& page, std::string_view number);

/// Names of the pages in a folder, in alphabetical order. Throws Error(bad_file) where there is none.
std::vector<std::string> manual_page_names(const std::filesystem::path& folder);

/// Throws Error(wrong_use) with the nearest names for a page that is not in the folder, Error(bad_file).
ManualPage read_manual_page(const std::filesystem::path& folder, const std::string& name);

}  // namespace keyhole
