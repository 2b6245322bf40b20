#include "app/panels/manual_reader.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>

namespace keyhole {

namespace {

void go_to(const PanelContext& context, const ManualPlace& place) {
    run(context, "help.manual " + format_manual_place(place));
}

void follow(const PanelContext& context, const std::string& link) {
    std::optional<ManualPlace> place = place_of_link(link);
    if (!place) {
        run(context, "copy " + link);
        return;
    }
    if (place->page.empty()) place->page = context.app.manual.place.page;
    go_to(context, *place);
}

/// Draws spans of text from the cursor on and wraps them at the right end of the room. Only a blank separates
/// words: a bracket stays with the link that it encloses.
class TextFlow {
  public:
    explicit TextFlow(const PanelContext& context)
        : context_(context),
          begin_(ImGui::GetCursorScreenPos()),
          right_(begin_.x + ImGui::GetContentRegionAvail().x),
          at_(begin_) {}

    void add(const ManualSpan& span, bool bold) {
        const ScopedFont font(bold || span.bold ? context_.fonts.bold : context_.fonts.book);
        height_ = std::max(height_, ImGui::GetTextLineHeight());
        std::string_view rest = span.text;
        while (!rest.empty()) {
            const std::size_t end = std::min(rest.find_first_of(" \n"), rest.size());
            const std::string_view text = rest.substr(0, end);
            if (!text.empty())
                word_.push_back({&span, ImGui::GetFont(), text,
                                 ImGui::CalcTextSize(text.data(), text.data() + text.size()).x});
            if (end < rest.size()) {
                end_word();
                at_.x += ImGui::CalcTextSize(" ").x;
            }
            rest.remove_prefix(std::min(end + 1, rest.size()));
        }
    }

    /// Moves the cursor below the text. Returns the link that was clicked; empty: none.
    std::string finish() {
        end_word();
        ImGui::Dummy({std::max(widest_ - begin_.x, 1.0f), at_.y + height_ - begin_.y});
        return clicked_;
    }

  private:
    struct Piece {
        const ManualSpan* span;
        ImFont* font;
        std::string_view text;
        float width;
    };

    void end_word() {
        float width = 0;
        for (const Piece& piece : word_) width += piece.width;
        if (at_.x + width > right_ && at_.x > begin_.x) at_ = {begin_.x, at_.y + height_ + context_.px(2)};
        for (const Piece& piece : word_) draw_piece(piece);
        word_.clear();
    }

    void draw_piece(const Piece& piece) {
        const ManualSpan& span = *piece.span;
        const ScopedFont font(piece.font);
        const ImU32 color = !span.link.empty() ? theme::colors().accent
                            : span.code        ? theme::colors().warm
                                               : theme::colors().text;
        ImDrawList& list = *ImGui::GetWindowDrawList();
        const ImVec2 end{at_.x + piece.width, at_.y + ImGui::GetTextLineHeight()};
        list.AddText(at_, color, piece.text.data(), piece.text.data() + piece.text.size());
        if (!span.link.empty()) {
            list.AddLine({at_.x, end.y}, end, theme::faded(color, 0.6f));
            mark_area(context_, "link " + span.link, at_, end);
            if (ImGui::IsWindowHovered() && ImGui::IsMouseHoveringRect(at_, end)) {
                ImGui::SetMouseCursor(ImGuiMouseCursor_Hand);
                if (ImGui::IsMouseClicked(ImGuiMouseButton_Left)) clicked_ = span.link;
            }
        }
        at_.x = end.x;
        widest_ = std::max(widest_, end.x);
    }

    const PanelContext& context_;
    const ImVec2 begin_;
    const float right_;
    ImVec2 at_;
    float height_ = 0, widest_ = 0;
    std::vector<Piece> word_;
    std::string clicked_;
};

/// Returns the link that was clicked; empty: none.
std::string draw_text(const PanelContext& context, const ManualText& text, bool bold = false) {
    TextFlow flow(context);
    for (const ManualSpan& span : text) flow.add(span, bold);
    return flow.finish();
}

float length_of(const ManualText& text) {
    std::size_t n_bytes = 0;
    for (const ManualSpan& span : text) n_bytes += span.text.size();
    return static_cast<float>(n_bytes);
}

std::string draw_table(const PanelContext& context, const ManualBlock& block) {
    std::string clicked;
    if (block.rows.empty()) return clicked;
    // Each column gets room by the root of its longest cell, so that a column of words stays narrow and one
    // of sentences does not take all.
    std::vector<float> weight(block.rows.front().size(), 1);
    for (const auto& row : block.rows)
        for (std::size_t c = 0; c < std::min(row.size(), weight.size()); ++c)
            weight[c] = std::max(weight[c], std::sqrt(length_of(row[c])));
    if (!ImGui::BeginTable("table", static_cast<int>(weight.size()),
                           ImGuiTableFlags_BordersInnerH | ImGuiTableFlags_SizingStretchProp))
        return clicked;
    for (const float w : weight) ImGui::TableSetupColumn("", ImGuiTableColumnFlags_WidthStretch, w);
    for (const auto& row : block.rows) {
        ImGui::TableNextRow();
        for (const ManualText& cell : row) {
            ImGui::TableNextColumn();
            const std::string link = draw_text(context, cell, &row == &block.rows.front());
            if (!link.empty()) clicked = link;
        }
    }
    ImGui::EndTable();
    return clicked;
}

/// Draws a block. Returns the link that was clicked; empty: none.
std::string draw_block(const PanelContext& context, const ManualBlock& block) {
    std::string clicked;
    const float left = ImGui::GetCursorPosX() + context.px(18) * static_cast<float>(block.indent);
    switch (block.kind) {
        case ManualBlock::Kind::heading:
            clicked = draw_text(context, block.text, true);
            if (block.level <= 2) ImGui::Separator();
            break;
        case ManualBlock::Kind::paragraph:
            ImGui::SetCursorPosX(left);
            clicked = draw_text(context, block.text);
            break;
        case ManualBlock::Kind::item:
            ImGui::SetCursorPosX(left - context.px(10));
            colored_text(theme::colors().dim, block.number > 0 ? fmt::format("{}.", block.number) : "•");
            ImGui::SameLine(0, context.px(6));
            clicked = draw_text(context, block.text);
            break;
        case ManualBlock::Kind::code: {
            ImGui::SetCursorPosX(left + context.px(10));
            const ScopedTextWrap wrap(0);
            const std::string_view code = block.code;
            colored_text(theme::colors().warm, code.substr(0, code.find_last_not_of('\n') + 1));
            break;
        }
        case ManualBlock::Kind::table:
            clicked = draw_table(context, block);
            break;
    }
    if (!block.tight) ImGui::Dummy({1, context.px(2)});
    return clicked;
}

/// Has the fonts load the characters of a page that few texts use.
void learn_characters(const ManualPage& page, Glyphs& glyphs) {
    for (const ManualBlock& block : page.blocks) {
        (void)glyphs.text(plain_text(block.text) + block.code);
        for (const auto& row : block.rows)
            for (const ManualText& cell : row) (void)glyphs.text(plain_text(cell));
    }
}

void draw_buttons(ManualReader& reader, const PanelContext& context) {
    {
        const ScopedDisabled disabled(reader.back.empty());
        if (ImGui::Button("Back")) {
            go_to(context, reader.back.back());
            reader.back.pop_back();
            reader.shown = {};  // the place that is left does not join `back`
        }
        mark_item(context, "manual back");
    }
    ImGui::SameLine();
    if (ImGui::Button("Contents")) run(context, "help.manual index");
    mark_item(context, "manual contents");
    ImGui::SameLine();
    dim_text(context, fmt::format("keyhole help {}", context.app.manual.place.page));
}

}  // namespace

void draw(ManualReader& reader, const PanelContext& context) {
    const AppState& app = context.app;
    draw_buttons(reader, context);
    if (app.manual.place != reader.shown) {
        if (!reader.shown.page.empty()) reader.back.push_back(reader.shown);
        reader.shown = app.manual.place;
        reader.scrolls = true;
        learn_characters(app.manual.page, app.glyphs);
    }
    // Each page has a child of its own, so its first frame is not scrolled as the page before it was.
    const ScopedChild child(reader.shown.page.c_str(), {0, ImGui::GetIO().DisplaySize.y * 0.7f}, false, 0);
    if (reader.scrolls && reader.shown.fragment.empty()) ImGui::SetScrollY(0);
    std::string clicked;
    int number = 0;
    for (const ManualBlock& block : app.manual.page.blocks) {
        const ScopedId id(number++);
        if (block.kind == ManualBlock::Kind::heading) {
            ImGui::Dummy({1, context.px(block.level <= 2 ? 8 : 4)});
            if (reader.scrolls && heading_fragment(block) == reader.shown.fragment) ImGui::SetScrollHereY(0);
        }
        const std::string link = draw_block(context, block);
        if (!link.empty()) clicked = link;
    }
    reader.scrolls = false;
    if (!clicked.empty()) follow(context, clicked);
}

}  // namespace keyhole
