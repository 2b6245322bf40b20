/// The widgets that Tab goes to, in the order in which they are drawn, and the one that has the keyboard's
/// ring. mark_item() adds them. Window thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct TabStop {
    std::string name;         ///< as mark_item() names it
    unsigned id = 0;          ///< as ImGui does
    bool takes_text = false;  ///< to go there is to edit it
    unsigned window = 0;      ///< ImGui's id: the stops of a pane have one
    std::string root;         ///< the name of its dialog, or of the whole window
};

class TabStops {
  public:
    /// Begins a frame: the stops of the one before stay until it has ended.
    void begin_frame();
    void add(TabStop stop);

    /// Puts the ring around the stop with this id, if there is one: a field that is being edited.
    void start_at(unsigned id);
    /// Goes to the next stop, or the one before. by_pane: to the first one in another window. root: only
    /// stops in it count; empty: all. Returns the stop; nullopt: there is none.
    std::optional<TabStop> move(bool backward, bool by_pane, std::string_view root);
    /// Takes the ring away.
    void clear() { ring_.clear(); }
    /// The stop with the ring, of the last frame; nullopt: none has it.
    std::optional<TabStop> ringed() const;
    const std::string& ring() const { return ring_; }  ///< its name; empty: none
    /// Returns once, after a move, whether the stop of this name must come into sight.
    bool takes_sight(std::string_view name);

  private:
    std::vector<TabStop> stops_, next_;
    void put(std::size_t place);

    std::string ring_, root_;  ///< root_: of the stop with the ring
    std::string before_;       ///< the ring before it came into a dialog, which it has again when that closes
    std::size_t place_ = 0;    ///< of the ring in the order, where its widget is gone
    bool is_new_ = false;
};

}  // namespace keyhole
