#include "app/manual/page.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/policy/spec_text.h"

#include <fmt/ranges.h>
#include <md4c.h>

#include <algorithm>
#include <cctype>
#include <exception>
#include <system_error>

namespace keyhole {

namespace {

namespace fs = std::filesystem;

std::string_view block_name(MD_BLOCKTYPE type) {
    switch (type) {
        case MD_BLOCK_QUOTE:
            return "a quote";
        case MD_BLOCK_HR:
            return "a rule";
        case MD_BLOCK_HTML:
            return "HTML";
        default:
            return "this block";
    }
}

/// Builds the blocks from md4c's events. Exceptions must not pass through C code, so `failure` holds them.
class PageBuilder {
  public:
    explicit PageBuilder(ManualPage& page) : page_(page) {}

    std::exception_ptr failure;

    void enter_block(MD_BLOCKTYPE type, void* detail) {
        switch (type) {
            case MD_BLOCK_DOC:
            case MD_BLOCK_THEAD:
            case MD_BLOCK_TBODY:
                break;
            case MD_BLOCK_UL:
                lists_.push_back({0, static_cast<const MD_BLOCK_UL_DETAIL*>(detail)->is_tight != 0});
                break;
            case MD_BLOCK_OL: {
                const auto* list = static_cast<const MD_BLOCK_OL_DETAIL*>(detail);
                lists_.push_back({static_cast<int>(list->start), list->is_tight != 0});
                break;
            }
            case MD_BLOCK_LI: {
                List& list = lists_.back();
                ManualBlock& item = add(ManualBlock::Kind::item);
                item.tight = list.tight;
                if (list.next > 0) item.number = list.next++;
                break;
            }
            case MD_BLOCK_P:
                // The first paragraph of an item is the item's own text.
                if (page_.blocks.empty() || page_.blocks.back().kind != ManualBlock::Kind::item ||
                    !page_.blocks.back().text.empty())
                    add(ManualBlock::Kind::paragraph);
                break;
            case MD_BLOCK_H:
                add(ManualBlock::Kind::heading).level =
                    static_cast<int>(static_cast<const MD_BLOCK_H_DETAIL*>(detail)->level);
                break;
            case MD_BLOCK_CODE:
                add(ManualBlock::Kind::code);
                break;
            case MD_BLOCK_TABLE:
                add(ManualBlock::Kind::table);
                break;
            case MD_BLOCK_TR:
                page_.blocks.back().rows.emplace_back();
                break;
            case MD_BLOCK_TH:
            case MD_BLOCK_TD:
                page_.blocks.back().rows.back().emplace_back();
                break;
            case MD_BLOCK_QUOTE:
            case MD_BLOCK_HR:
            case MD_BLOCK_HTML:
                refuse(block_name(type));
        }
    }

    void leave_block(MD_BLOCKTYPE type) {
        if (type == MD_BLOCK_UL || type == MD_BLOCK_OL) lists_.pop_back();
    }

    void enter_span(MD_SPANTYPE type, void* detail) {
        switch (type) {
            case MD_SPAN_EM:
                style_.italic = true;
                break;
            case MD_SPAN_STRONG:
                style_.bold = true;
                break;
            case MD_SPAN_CODE:
                style_.code = true;
                break;
            case MD_SPAN_A: {
                const MD_ATTRIBUTE& href = static_cast<const MD_SPAN_A_DETAIL*>(detail)->href;
                style_.link.assign(href.text, href.size);
                break;
            }
            case MD_SPAN_IMG: {
                const MD_ATTRIBUTE& src = static_cast<const MD_SPAN_IMG_DETAIL*>(detail)->src;
                style_.picture.assign(src.text, src.size);
                break;
            }
            default:
                refuse("this style of text");
        }
    }

    void leave_span(MD_SPANTYPE type) {
        if (type == MD_SPAN_EM) style_.italic = false;
        if (type == MD_SPAN_STRONG) style_.bold = false;
        if (type == MD_SPAN_CODE) style_.code = false;
        if (type == MD_SPAN_A) style_.link.clear();
        if (type == MD_SPAN_IMG) style_.picture.clear();
    }

    void text(MD_TEXTTYPE type, std::string_view words) {
        ManualBlock& block = page_.blocks.back();
        if (block.kind == ManualBlock::Kind::code) {
            block.code += words;
            return;
        }
        if (type == MD_TEXT_BR || type == MD_TEXT_ENTITY || type == MD_TEXT_HTML)
            refuse(type == MD_TEXT_BR ? "a forced line break" : "an entity");
        ManualSpan span = style_;
        span.text = type == MD_TEXT_SOFTBR ? " " : std::string(words);
        const bool in_table = block.kind == ManualBlock::Kind::table;
        // A bar in a cell is written \|, in code too; there md4c keeps the backslash.
        if (in_table && type == MD_TEXT_CODE)
            for (std::size_t at = 0; (at = span.text.find("\\|", at)) != std::string::npos;)
                span.text.erase(at, 1);
        ManualText& to = in_table ? block.rows.back().back() : block.text;
        const bool same = !to.empty() && to.back().bold == span.bold && to.back().italic == span.italic &&
                          to.back().code == span.code && to.back().link == span.link &&
                          to.back().picture == span.picture;
        if (same)
            to.back().text += span.text;
        else
            to.push_back(std::move(span));
    }

  private:
    struct List {
        int next = 0;  // number of the next item; 0: bullets
        bool tight = false;
    };
    ManualPage& page_;
    std::vector<List> lists_;
    ManualSpan style_;

    ManualBlock& add(ManualBlock::Kind kind) {
        ManualBlock& block = page_.blocks.emplace_back();
        block.kind = kind;
        block.indent = static_cast<int>(lists_.size());
        return block;
    }

    [[noreturn]] void refuse(std::string_view what) const {
        fail(ErrorCode::unsupported, "the manual page {} has {}, which the manual does not draw", page_.name,
             what);
    }
};

/// Runs one event. Returns nonzero, which ends the parse, if it threw.
template <class Event>
int guarded(void* builder, Event event) {
    auto& to = *static_cast<PageBuilder*>(builder);
    try {
        event(to);
        return 0;
    } catch (...) {
        to.failure = std::current_exception();
        return 1;
    }
}

bool is_number_char(char c) {
    return std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '.';
}

}  // namespace

ManualPlace parse_manual_place(std::string_view text) {
    const std::size_t end = std::min(text.find('#'), text.size());
    return {std::string(text.substr(0, end)), std::string(text.substr(std::min(end + 1, text.size())))};
}

std::string format_manual_place(const ManualPlace& place) {
    return place.fragment.empty() ? place.page : place.page + "#" + place.fragment;
}

std::optional<ManualPlace> place_of_link(std::string_view link) {
    if (link.find("://") != std::string_view::npos) return std::nullopt;
    ManualPlace place = parse_manual_place(link);
    constexpr std::string_view kFile = ".md";
    if (place.page.ends_with(kFile)) place.page.resize(place.page.size() - kFile.size());
    return place;
}

std::string plain_text(const ManualText& text) {
    std::string out;
    for (const ManualSpan& span : text) out += span.text;
    return out;
}

std::string section_number(const ManualBlock& heading) {
    const std::string text = plain_text(heading.text);
    std::size_t end = 0;
    while (end < text.size() && is_number_char(text[end])) ++end;
    std::string number = text.substr(0, end);
    while (number.ends_with('.')) number.pop_back();
    return number;
}

std::string heading_fragment(const ManualBlock& heading) {
    std::string out;
    for (const char c : plain_text(heading.text)) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == ' ')
            out += '-';
        else if (std::isalnum(byte) != 0 || c == '-' || c == '_' || byte >= 0x80)
            out += static_cast<char>(std::tolower(byte));
    }
    return out;
}

ManualPage parse_manual_page(std::string name, std::string_view markdown) {
    ManualPage page{std::move(name), {}};
    PageBuilder builder(page);
    MD_PARSER parser{};
    parser.flags = MD_FLAG_TABLES | MD_FLAG_NOHTMLSPANS;
    parser.enter_block = [](MD_BLOCKTYPE type, void* detail, void* to) {
        return guarded(to, [&](PageBuilder& b) { b.enter_block(type, detail); });
    };
    parser.leave_block = [](MD_BLOCKTYPE type, void*, void* to) {
        return guarded(to, [&](PageBuilder& b) { b.leave_block(type); });
    };
    parser.enter_span = [](MD_SPANTYPE type, void* detail, void* to) {
        return guarded(to, [&](PageBuilder& b) { b.enter_span(type, detail); });
    };
    parser.leave_span = [](MD_SPANTYPE type, void*, void* to) {
        return guarded(to, [&](PageBuilder& b) { b.leave_span(type); });
    };
    parser.text = [](MD_TEXTTYPE type, const MD_CHAR* text, MD_SIZE size, void* to) {
        return guarded(to, [&](PageBuilder& b) { b.text(type, {text, size}); });
    };
    const int status = md_parse(markdown.data(), static_cast<MD_SIZE>(markdown.size()), &parser, &builder);
    if (builder.failure) std::rethrow_exception(builder.failure);
    if (status != 0) fail(ErrorCode::no_memory, "parsing the manual page {}: not enough memory", page.name);
    return page;
}

/// Returns whether a heading has this number, these words, or begins with them; case does not count.
static bool is_section(const ManualBlock& heading, std::string_view wanted) {
    if (section_number(heading) == wanted) return true;
    const auto lower = [](std::string_view text) {
        std::string out(text);
        for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        return out;
    };
    const std::string words = lower(plain_text(heading.text)), sought = lower(wanted);
    return !sought.empty() && (words.starts_with(sought) || words.find(' ' + sought) != std::string::npos ||
                               heading_fragment(heading) == sought);
}

ManualPage section_of(const ManualPage& page, std::string_view wanted) {
    ManualPage section{page.name, {}};
    int level = 0;  // of the section's heading; 0: not reached
    for (const ManualBlock& block : page.blocks) {
        if (block.kind == ManualBlock::Kind::heading) {
            if (level > 0 && block.level <= level) break;
            if (level == 0 && is_section(block, wanted)) level = block.level;
        }
        if (level > 0) section.blocks.push_back(block);
    }
    return section;
}

std::vector<std::string> manual_page_names(const fs::path& folder) {
    std::error_code error;
    std::vector<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
        if (entry.path().extension() == ".md") names.push_back(entry.path().stem().string());
    if (error)
        fail(ErrorCode::bad_file, "reading the manual in {}: {}; it is assets/manual of the sources",
             folder.string(), error.message());
    std::sort(names.begin(), names.end());
    return names;
}

ManualPage read_manual_page(const fs::path& folder, const std::string& name) {
    const std::vector<std::string> names = manual_page_names(folder);
    if (std::find(names.begin(), names.end(), name) == names.end()) {
        std::vector<std::string_view> near(names.begin(), names.end());
        std::erase(near, "index");
        // A page of whose name the text is a part is nearer than one that differs in few letters.
        const auto distance = [&](std::string_view page) {
            const bool is_part = page.find(name) != std::string_view::npos || name.starts_with(page);
            return is_part ? 0 : spec_text::edit_distance(name, page);
        };
        std::stable_sort(near.begin(), near.end(),
                         [&](std::string_view a, std::string_view b) { return distance(a) < distance(b); });
        near.resize(std::min<std::size_t>(near.size(), 3));
        fail(ErrorCode::wrong_use, "the manual has no page '{}'; the nearest are {}; keyhole help lists all",
             name, fmt::join(near, ", "));
    }
    return parse_manual_page(name, read_text_file(folder / (name + ".md")));
}

ManualPage read_manual_place(const fs::path& folder, const ManualPlace& place) {
    ManualPage page = read_manual_page(folder, place.page);
    const auto is_it = [&](const ManualBlock& block) {
        return block.kind == ManualBlock::Kind::heading && heading_fragment(block) == place.fragment;
    };
    if (!place.fragment.empty() && std::none_of(page.blocks.begin(), page.blocks.end(), is_it))
        fail(ErrorCode::wrong_use, "the manual page {} has no heading #{}; keyhole help {} shows all of it",
             place.page, shown_text(place.fragment), place.page);
    return page;
}

}  // namespace keyhole
