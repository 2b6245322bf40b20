#include "app/manual/html.h"

#include <fmt/format.h>

namespace keyhole {

namespace {

std::string html_of(std::string_view text) {
    std::string out;
    for (const char c : text) switch (c) {
            case '&':
                out += "&amp;";
                break;
            case '<':
                out += "&lt;";
                break;
            case '>':
                out += "&gt;";
                break;
            case '"':
                out += "&quot;";
                break;
            default:
                out += c;
        }
    return out;
}

/// Returns the address of a link: pages of the manual lie beside this one.
std::string address_of(const std::string& link) {
    const std::optional<ManualPlace> place = place_of_link(link);
    if (!place) return link;
    return (place->page.empty() ? "" : place->page + ".html") +
           (place->fragment.empty() ? "" : "#" + place->fragment);
}

std::string html_of(const ManualText& text) {
    std::string out;
    for (const ManualSpan& span : text) {
        std::string part = html_of(span.text);
        if (!span.picture.empty())
            part = fmt::format("<img src=\"{}\" alt=\"{}\" style=\"max-width: 100%\">", html_of(span.picture),
                               part);
        if (span.code) part = fmt::format("<code>{}</code>", part);
        if (span.bold) part = fmt::format("<b>{}</b>", part);
        if (span.italic) part = fmt::format("<i>{}</i>", part);
        if (!span.link.empty())
            part = fmt::format("<a href=\"{}\">{}</a>", html_of(address_of(span.link)), part);
        out += part;
    }
    return out;
}

std::string html_of_table(const std::vector<std::vector<ManualText>>& rows) {
    std::string out = "<div class=\"scroll\"><table>\n";
    for (std::size_t i = 0; i < rows.size(); ++i) {
        out += "<tr>";
        for (const ManualText& cell : rows[i])
            out += i == 0 ? fmt::format("<th scope=\"col\">{}</th>", html_of(cell))
                          : fmt::format("<td>{}</td>", html_of(cell));
        out += "</tr>\n";
    }
    return out + "</table></div>\n";
}

/// The lists that are open, outermost first: true: numbered.
struct OpenLists {
    std::vector<bool> numbered;
    std::string to(int depth, bool numbers) {
        std::string out;
        const auto close = [&] {
            out += numbered.back() ? "</li></ol>\n" : "</li></ul>\n";
            numbered.pop_back();
        };
        while (static_cast<int>(numbered.size()) > depth) close();
        if (depth > 0 && static_cast<int>(numbered.size()) == depth && numbered.back() != numbers) close();
        while (static_cast<int>(numbered.size()) < depth) {
            out += numbers ? "<ol>" : "<ul>";
            numbered.push_back(numbers);
            opened = true;
        }
        return out;
    }
    bool opened = false;
};

std::string html_of(const ManualBlock& block) {
    switch (block.kind) {
        case ManualBlock::Kind::heading:
            return fmt::format("<h{0} id=\"{1}\">{2}</h{0}>\n", block.level, html_of(heading_fragment(block)),
                               html_of(block.text));
        case ManualBlock::Kind::code:
            return fmt::format("<pre tabindex=\"0\"><code>{}</code></pre>\n", html_of(block.code));
        case ManualBlock::Kind::table:
            return html_of_table(block.rows);
        case ManualBlock::Kind::item:
            return html_of(block.text);
        case ManualBlock::Kind::paragraph:
            break;
    }
    return fmt::format("<p>{}</p>\n", html_of(block.text));
}

}  // namespace

std::string manual_html(const ManualPage& page) {
    std::string out;
    OpenLists lists;
    for (const ManualBlock& block : page.blocks) {
        const bool is_item = block.kind == ManualBlock::Kind::item;
        lists.opened = false;
        // What belongs to an item leaves its list open, whatever the list is.
        const bool numbers = is_item ? block.number > 0 : !lists.numbered.empty() && lists.numbered.back();
        out += lists.to(block.indent, numbers);
        if (is_item && !lists.opened) out += "</li>\n";
        if (is_item) out += block.number > 0 ? fmt::format("<li value=\"{}\">", block.number) : "<li>";
        out += html_of(block);
    }
    return out + lists.to(0, false);
}

}  // namespace keyhole
