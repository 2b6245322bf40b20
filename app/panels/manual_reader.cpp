#include "app/panels/manual_reader.h"

#include "app/base/assets.h"
#include "engine/base/error.h"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace keyhole {

namespace {

std::string page_of(const std::string& place) {
    return place.substr(0, place.find('#'));
}
std::string fragment_of(const std::string& place) {
    const std::size_t at = place.find('#');
    return at == std::string::npos ? "" : place.substr(at + 1);
}

/// Returns the place that a link of the shown page names; empty if it leads out of the manual.
std::string place_of_link(const std::string& link, const std::string& page) {
    if (link.find("://") != std::string::npos) return "";
    const std::string file = page_of(link), fragment = fragment_of(link);
    std::string name = file.empty() ? page : file;
    if (name.ends_with(".md")) name.resize(name.size() - 3);
    return fragment.empty() ? name : name + "#" + fragment;
}

void go_to(ManualReader& reader, const PanelContext& context, const std::string& link) {
    const std::string place = place_of_link(link, reader.page.name);
    if (place.empty()) {
        context.app.clipboard_out = link;
        context.app.say("copied " + link);
        return;
    }
    run(context, "help.manual " + place);
}

/// Draws spans of text from the cursor on, and wraps them at the right end of the room.
class TextFlow {
  public:
    TextFlow(ManualReader& reader, const PanelContext& context)
        : reader_(reader),
          context_(context),
          begin_(ImGui::GetCursorScreenPos()),
          right_(begin_.x + ImGui::GetContentRegionAvail().x),
          at_(begin_) {}

    void add(const ManualSpan& span, bool bold) {
        ImFont* font = bold || span.bold ? context_.fonts.bold : context_.fonts.book;
        const ImU32 color = !span.link.empty() ? theme::kAccent : span.code ? theme::kWarm : theme::kText;
        const ScopedFont scope(font);
        const float blank = ImGui::CalcTextSize(" ").x;
        height_ = std::max(height_, ImGui::GetTextLineHeight());
        std::string_view rest = span.text;
        while (!rest.empty()) {
            const std::size_t end = std::min(rest.find_first_of(" \n"), rest.size());
            draw_word(rest.substr(0, end), color, span);
            if (end < rest.size()) at_.x += blank;
            rest.remove_prefix(std::min(end + 1, rest.size()));
        }
    }

    /// Moves the cursor below the text. Returns the link that was clicked; empty: none.
    std::string finish() {
        const float height = at_.y + height_ - begin_.y;
        ImGui::Dummy({std::max(widest_ - begin_.x, 1.0f), height});
        return clicked_;
    }

  private:
    void draw_word(std::string_view word, ImU32 color, const ManualSpan& span) {
        if (word.empty()) return;
        const ImVec2 size = ImGui::CalcTextSize(word.data(), word.data() + word.size());
        if (at_.x + size.x > right_ && at_.x > begin_.x) at_ = {begin_.x, at_.y + height_ + context_.px(2)};
        ImDrawList& list = *ImGui::GetWindowDrawList();
        const ImVec2 end{at_.x + size.x, at_.y + size.y};
        list.AddText(at_, color, word.data(), word.data() + word.size());
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

    ManualReader& reader_;
    const PanelContext& context_;
    const ImVec2 begin_;
    const float right_;
    ImVec2 at_;
    float height_ = 0, widest_ = 0;
    std::string clicked_;
};

/// Returns the link that was clicked; empty: none.
std::string draw_text(ManualReader& reader, const PanelContext& context, const ManualText& text,
                      bool bold = false) {
    TextFlow flow(reader, context);
    for (const ManualSpan& span : text) flow.add(span, bold);
    return flow.finish();
}

std::string draw_table(ManualReader& reader, const PanelContext& context, const ManualBlock& block,
                       int index) {
    std::string clicked;
    if (block.rows.empty()) return clicked;
    const int n_columns = static_cast<int>(block.rows.front().size());
    // Each column gets room by the root of its longest cell, so that a column of words stays narrow and one
    // of sentences does not take all.
    std::vector<float> weight(block.rows.front().size(), 1);
    for (const auto& row : block.rows)
        for (std::size_t c = 0; c < std::min(row.size(), weight.size()); ++c)
            weight[c] = std::max(weight[c], std::sqrt(static_cast<float>(plain_text(row[c]).size())));
    const ScopedId id(index);
    if (!ImGui::BeginTable("table", n_columns,
                           ImGuiTableFlags_BordersInnerH | ImGuiTableFlags_SizingStretchProp))
        return clicked;
    for (const float w : weight) ImGui::TableSetupColumn("", ImGuiTableColumnFlags_WidthStretch, w);
    for (std::size_t r = 0; r < block.rows.size(); ++r) {
        ImGui::TableNextRow();
        for (const ManualText& cell : block.rows[r]) {
            ImGui::TableNextColumn();
            const std::string link = draw_text(reader, context, cell, r == 0);
            if (!link.empty()) clicked = link;
        }
    }
    ImGui::EndTable();
    return clicked;
}

/// Draws a block. Returns the link that was clicked; empty: none.
std::string draw_block(ManualReader& reader, const PanelContext& context, const ManualBlock& block,
                       int index) {
    const float indent = context.px(18) * static_cast<float>(block.indent);
    std::string clicked;
    switch (block.kind) {
        case ManualBlock::Kind::heading:
            ImGui::Dummy({1, context.px(block.level <= 2 ? 8 : 4)});
            if (reader.scrolls && heading_fragment(block) == fragment_of(reader.shown))
                ImGui::SetScrollHereY(0);
            clicked = draw_text(reader, context, block.text, true);
            if (block.level <= 2) ImGui::Separator();
            break;
        case ManualBlock::Kind::paragraph:
            ImGui::SetCursorPosX(ImGui::GetCursorPosX() + indent);
            clicked = draw_text(reader, context, block.text);
            break;
        case ManualBlock::Kind::item: {
            const std::string mark = block.number > 0 ? fmt::format("{}.", block.number) : "•";
            ImGui::SetCursorPosX(ImGui::GetCursorPosX() + indent - context.px(10));
            colored_text(theme::kDim, mark);
            ImGui::SameLine(0, context.px(6));
            clicked = draw_text(reader, context, block.text);
            break;
        }
        case ManualBlock::Kind::code: {
            ImGui::SetCursorPosX(ImGui::GetCursorPosX() + indent + context.px(10));
            const ScopedTextWrap wrap(0);
            const std::string_view code = block.code;
            colored_text(theme::kWarm, code.substr(0, code.find_last_not_of('\n') + 1));
            break;
        }
        case ManualBlock::Kind::table:
            clicked = draw_table(reader, context, block, index);
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

void load(ManualReader& reader, const PanelContext& context, const std::string& place) {
    reader.shown = place;
    reader.scrolls = true;
    reader.fault.clear();
    try {
        reader.page = read_manual_page(find_assets() / "manual", page_of(place));
        learn_characters(reader.page, context.app.glyphs);
    } catch (const Error& error) {
        reader.page = {};
        reader.fault = error.what();
    }
}

}  // namespace

void draw(ManualReader& reader, const PanelContext& context) {
    AppState& app = context.app;
    if (app.manual_place.empty()) app.manual_place = "index";
    if (app.manual_place != reader.shown) {
        if (!reader.shown.empty()) reader.back.push_back(reader.shown);
        load(reader, context, app.manual_place);
    }
    {
        const ScopedDisabled disabled(reader.back.empty());
        if (ImGui::Button("Back")) {
            load(reader, context, std::string(reader.back.back()));
            app.manual_place = reader.shown;
            reader.back.pop_back();
        }
        mark_item(context, "manual back");
    }
    ImGui::SameLine();
    if (ImGui::Button("Contents")) run(context, "help.manual index");
    mark_item(context, "manual contents");
    ImGui::SameLine();
    dim_text(context, fmt::format("keyhole help {}", page_of(reader.shown)));

    const float height = ImGui::GetIO().DisplaySize.y * 0.7f;
    const std::string name = page_of(reader.shown);  // each page keeps where it was scrolled to
    const ScopedChild child(name.c_str(), {0, height}, false, 0);
    if (!reader.fault.empty()) colored_text(theme::kFault, reader.fault);
    if (reader.scrolls && fragment_of(reader.shown).empty()) ImGui::SetScrollY(0);
    std::string clicked;
    int index = 0;
    for (const ManualBlock& block : reader.page.blocks) {
        const std::string link = draw_block(reader, context, block, index++);
        if (!link.empty()) clicked = link;
    }
    reader.scrolls = false;
    if (!clicked.empty()) go_to(reader, context, clicked);
}

}  // namespace keyhole
